"""Everything headcount does to models behind their public interface; the next transformers release may break this file.

Three things are changed on a model, each through the functions here and nowhere else:

- a pruned module carries a `Layout` (`set_layout`, `layout_of`), and `put_mixin` may put a class in front of its own;
- one module may see other configuration values than the rest of the model (`push_view`, `pop_view`). transformers
  chooses the attention kernel by `module.config._attn_implementation`, for the whole model at once: a view that names
  one of our kernels puts it in front of the kernel that the user chose, at this module alone;
- `Substitutes` replace the `forward` of single modules for as long as a block lasts.

The rest reads or writes single private attributes of torch, transformers, accelerate and peft.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _is_torch_function_mode_enabled
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker
from transformers import AttentionInterface, GenerationConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.initialization import no_init_weights
from transformers.models.auto import modeling_auto
from transformers.pytorch_utils import Conv1D

from headcount.errors import HeadcountError
from headcount.structure.layout import Layout

UNGROUPED = "headcount_ungrouped"
ALIGNMENT = 64  # bytes, as torch allocates
# Attention kernels that PyTorch's counter of FLOPs does not know.
UNCOUNTED = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_fused_attention_overrideable",
)
PROJECTIONS = (nn.Linear, Conv1D, nn.modules.linear.NonDynamicallyQuantizableLinear)
WRAPPERS = {
    "OptimizedModule": ("is compiled (torch.compile)", "pass the model as it was before, and compile afterwards"),
    "DistributedDataParallel": ("is wrapped for distributed training", "pass model.module"),
    "DataParallel": ("is wrapped for several devices", "pass model.module"),
    "FullyShardedDataParallel": ("is sharded by FSDP", "pass the model before it is wrapped"),
    "FSDP": ("is sharded by FSDP", "pass the model before it is wrapped"),
}


# ------------------------------------------------------------------------------------------------- layouts and mixins


def layout_of(module: Any) -> Layout | None:
    """The layout of a module that heads or neurons were removed from, or None."""
    return module.__dict__.get("headcount_layout")


def set_layout(module: Any, layout: Layout) -> None:
    """Let a module remember which heads or neurons it has left; copies of the model take it along."""
    module.__dict__["headcount_layout"] = layout


def put_mixin(module: Any, mixin: type, output: str = "") -> None:
    """Put a mixin in front of a module's transformers class, in place of an earlier one.

    output: the path of the output projection from the module.
    """
    stock: Any = next(cls for cls in type(module).__mro__ if issubclass(cls, nn.Module) and "_stock" not in vars(cls))
    module.__class__ = mixed(mixin, stock, output)


@cache
def mixed(mixin: type, stock: Any, output: str = "") -> Any:
    """A class of the same name with a mixin in front of it."""
    own = {"__module__": stock.__module__, "__reduce_ex__": _reduce, "_mixin": mixin, "_stock": stock}
    return type(stock.__name__, (mixin, stock), {**own, "_output_path": output})


def _reduce(module: Any, protocol: Any) -> tuple[Any, ...]:
    """How to copy or pickle a module with a mixin: its class is made where it arrives."""
    reduced: Any = object.__reduce_ex__(module, max(protocol, 2))
    return _blank, (module._mixin, module._stock, module._output_path), *reduced[2:]


def _blank(mixin: type, stock: type, output: str) -> Any:
    cls = mixed(mixin, stock, output)
    return cls.__new__(cls)


def bias_only(projection: Any, hidden: Tensor) -> Tensor:
    """What an output projection without inputs puts out: its bias, or zero.  (B, T, hidden)"""
    bias = projection.bias
    if bias is None:
        return hidden.new_zeros(*hidden.shape[:-1], projection.weight.shape[0])
    return bias.to(hidden.dtype).expand(*hidden.shape[:-1], -1)


class Emptied:
    """Goes in front of an attention class whose heads have all been removed."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = hidden_of(args, kwargs)  # (B, T, hidden)
        output = self.finish(self.project(hidden), hidden, args, kwargs)
        self.keep_cache_length(hidden, kwargs)
        return output

    def project(self, hidden: Tensor) -> Tensor:
        """What the module's own output projection adds without heads."""
        return bias_only(self.get_submodule(self._output_path), hidden)  # type: ignore[attr-defined]

    def finish(self, projected: Tensor, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the attention class returns, given what the output projection put out."""
        return projected, None

    def keep_cache_length(self, hidden: Tensor, kwargs: dict[str, Any]) -> None:
        """Tell the cache how many tokens have passed, which it reads from the first layer's keys.

        A tensor without heads would count as an empty cache, so one number per token is kept instead.
        """
        cache = kwargs.get("past_key_values", kwargs.get("layer_past"))
        layout, layer = layout_of(self), getattr(self, "layer_idx", None)
        if cache is None or layout is None or layout.kind not in ("decoder", "cross"):
            return
        placeholder = hidden.new_zeros(hidden.shape[0], 1, hidden.shape[1], 1)  # (B, 1, T, 1)
        if layout.kind == "decoder":
            getattr(cache, "self_attention_cache", cache).update(placeholder, placeholder, layer)
        elif hasattr(cache, "cross_attention_cache") and not cache.is_updated.get(layer):
            cache.cross_attention_cache.update(placeholder, placeholder, layer)  # Whisper reads it after generation
            cache.is_updated[layer] = True


class EmptiedContext(Emptied):
    """For attention classes that return the heads' outputs and leave the projection to their parent."""

    def project(self, hidden: Tensor) -> Tensor:
        return hidden.new_zeros(*hidden.shape[:-1], 0)  # the parent's projection adds its bias


class EmptiedConv1D:
    """For GPT-2's transposed projections, which cannot view a tensor without features."""

    def forward(self, hidden: Tensor) -> Tensor:
        return bias_only(self, hidden)


# --------------------------------------------------------------------------------------- configuration views, kernels


class ConfigView:
    """A configuration as one module sees it: some values replaced, all others live from the model's.

    >>> from types import SimpleNamespace
    >>> view = ConfigView(SimpleNamespace(heads=8, size=4), "example", {"heads": 3})
    >>> view.heads, view.size
    (3, 4)
    """

    def __init__(self, base: Any, name: str, replaced: dict[str, Any]) -> None:
        self.__dict__.update(_base=base, _name=name, _replaced=replaced)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_replaced" not in self.__dict__:  # copy and pickle ask before it is filled
            raise AttributeError(name)
        return self._replaced[name] if name in self._replaced else getattr(self._base, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._base, name, value)


def push_view(module: Any, name: str, *, kernel: str | None = None, **replaced: Any) -> None:
    """Let one module see other configuration values, on top of the views that it has.

    >>> from types import SimpleNamespace
    >>> module = SimpleNamespace(config=SimpleNamespace(heads=8, size=4))
    >>> push_view(module, "one", heads=3)
    >>> push_view(module, "other", size=2)
    >>> pop_view(module, "one")  # in any order
    >>> module.config.heads, module.config.size
    (8, 2)

    name: to pop the view by. kernel: an attention function of ours that runs at this module.
    """
    values = replaced if kernel is None else {**replaced, "_attn_implementation": kernel}
    module.config = ConfigView(module.config, name, values)


def pop_view(module: Any, name: str) -> None:
    """Take away the topmost view of this name, wherever it lies among others; nothing happens if there is none."""
    if hasattr(module, "config"):
        module.config = _without(module.config, name)


def _without(config: Any, name: str) -> Any:
    if not isinstance(config, ConfigView):
        return config
    if config._name == name:
        return config._base
    below = _without(config._base, name)
    return config if below is config._base else ConfigView(below, config._name, config._replaced)


def has_view(module: Any, name: str) -> bool:
    """Whether a view of this name has been pushed to the module."""
    return any(view._name == name for view in _views(module))


def _views(module: Any) -> Iterator[ConfigView]:
    config = getattr(module, "config", None)
    while isinstance(config, ConfigView):
        yield config
        config = config._base


def kernel_of(model: Any) -> str:
    """The name of the attention kernel that a model, or one of its attention modules, uses."""
    return getattr(model.config, "_attn_implementation", None) or "eager"


def kernel_below(module: Any, own_name: str) -> Callable[..., Any]:
    """The attention function that one of ours runs in front of."""
    own = next(view for view in _views(module) if view._replaced.get("_attn_implementation") == own_name)
    namespace = _namespace(type(module))
    return namespace["ALL_ATTENTION_FUNCTIONS"].get_interface(
        own._base._attn_implementation, namespace["eager_attention_forward"]
    )


def has_interface(module: nn.Module) -> bool:
    """Whether the module's attention goes through transformers' interface, so that a kernel of ours can run first."""
    return hasattr(module, "config") and _namespace(type(module)) is not None


def _namespace(cls: type) -> Any:
    """What the file that defines an attention class calls by name."""
    files = (sys.modules[base.__module__].__dict__ for base in cls.__mro__)
    return next((names for names in files if "ALL_ATTENTION_FUNCTIONS" in names), None)


def select_heads(tensor: Tensor, heads: Sequence[int]) -> Tensor:
    """Some heads of a tensor (B, heads, …), in that order and as often as named.

    >>> select_heads(torch.arange(3.0).view(1, 3, 1), (0, 0, 2)).flatten().tolist()
    [0.0, 0.0, 2.0]

    The same as `tensor[:, heads]`, and several times faster: PyTorch has a kernel of its own for it, and the index is
    made once. A graph that is being traced makes its own, as a traced tensor must not outlive it.
    """
    if type(tensor) is not Tensor or torch.compiler.is_compiling():
        return tensor.index_select(1, torch.tensor(heads, dtype=torch.long, device=tensor.device))
    return tensor.index_select(1, _index(tuple(heads), tensor.device))


@cache
def _index(positions: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it may be needed where gradients are, too
        return torch.tensor(positions, dtype=torch.long, device=device)


def ungrouped(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> Any:
    """Attention where query heads share key-value heads unevenly: give each query head its own view of one."""
    layout = layout_of(module)
    assert layout is not None
    key, value = select_heads(key, layout.kv_index), select_heads(value, layout.kv_index)
    return kernel_below(module, UNGROUPED)(module, query, key, value, attention_mask, **kwargs)


AttentionInterface.register(UNGROUPED, ungrouped)


# --------------------------------------------------------------------------------------------- forward, hooks, wrappers


class Substitutes(ExitStack):
    """Replaces the `forward` of single modules, and gives every one back its own at the end."""

    def put(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        own = module.__dict__.get("forward")
        module.__dict__["forward"] = forward
        self.callback(self._restore, module, own)

    @staticmethod
    def _restore(module: nn.Module, own: Any) -> None:
        if own is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = own


def has_own_forward(module: nn.Module) -> bool:
    """Whether something replaced this module's `forward`, as accelerate does: a mixin would never run."""
    return "forward" in module.__dict__


def hidden_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The hidden states that a layer or attention module is called with."""
    return args[0] if args else kwargs["hidden_states"]


def with_hidden(args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with other hidden states."""
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})


def blank_context(site: Any, hidden: Any) -> Any:
    """Goes where heads' outputs are expected but not used: of the right shape, without memory of its own."""
    return hidden.new_zeros(()).expand(*hidden.shape[:-1], len(site.kept) * site.width)


def is_hooked(module: Any, by: str = "") -> bool:
    """Whether a hook runs before the module; `by`: only hooks whose code is in this package.

    >>> layer = nn.Linear(2, 2)
    >>> handle = layer.register_forward_pre_hook(lambda module, args: None)
    >>> is_hooked(layer), is_hooked(layer, by="elsewhere.")
    (True, False)
    """
    return any((getattr(hook, "__module__", None) or "").startswith(by) for hook in module._forward_pre_hooks.values())


def wrapper_of(module: nn.Module) -> tuple[str, str] | None:
    """What stands between us and the code that runs (compiled code ignores hooks, silently), and what to do."""
    name = "OptimizedModule" if module._compiled_call_impl is not None else type(module).__name__
    return WRAPPERS.get(name)


def mark_exported(model: Any, file: str) -> None:
    """Let a model say that its computation is in a file, so that masks and cuts would not reach it."""
    model.__dict__["headcount_export"] = file


def refuse_exported(model: Any) -> None:
    """Refuse to mask, watch or cut a model that runs elsewhere: nothing would happen, silently."""
    file = getattr(model, "__dict__", {}).get("headcount_export")  # a model's name has none: refused later
    if file is not None:
        raise HeadcountError(
            f"{file} is an exported graph, whose heads are fixed", advice="give the model that it was exported from"
        )


def has_adapters(model: Any) -> bool:
    """Whether peft has put adapters into a transformers model, so that saving it would save them alone."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def stranger_in(projection: Any) -> type | None:
    """The class of a projection, or of its weight, that is not torch's or transformers' own: quantized, packed, LoRA.

    >>> stranger_in(nn.Linear(2, 2)) is None
    True
    """
    own = getattr(type(projection), "_stock", type(projection))  # below a mixin of ours
    if own not in PROJECTIONS:
        return own
    weight = type(projection.weight.data)
    return None if weight is Tensor else weight


def is_transposed(projection: Any) -> bool:
    """Whether a projection's weight is (in, out), as GPT-2 has it, and not (out, in)."""
    return isinstance(projection, Conv1D)


# ------------------------------------------------------------------------------------ where a model is and came from


def device_of(model: Any) -> torch.device:
    """The device that inputs go to.

    >>> device_of(torch.nn.Linear(2, 2))
    device(type='cpu')

    Weights that accelerate keeps elsewhere until they are needed are on no device at all; its hook in front of the
    model knows where they will be used.
    """
    for weight in model.parameters():
        if weight.device.type != "meta":
            return weight.device
    for module in model.modules():
        device = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if device is not None:
            return torch.device(device)
    return torch.device("cpu")


def came_from(model: Any) -> str:
    """The directory or hub id that a model, or the model of a configuration, was loaded from; empty if from nowhere."""
    return getattr(getattr(model, "config", model), "_name_or_path", None) or ""


def remember_origin(model: Any, name: Any) -> None:
    """Let a model, or a configuration, say that it came from this directory or hub id."""
    getattr(model, "config", model)._name_or_path = str(name)


def unsplittable(model: Any) -> list[str]:
    """Classes of modules that must stay on one device, for accelerate's device map."""
    return list(getattr(model, "_no_split_modules", None) or [])


# ---------------------------------------------------------------------------------------------------------- weights


def built_empty(cls: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    """A model of this class on the meta device: all of its structure, none of its weights."""
    with torch.device("meta"), no_init_weights():
        return cls(config)


def built_with_weights(
    cls: Any, config: Any, weights: dict[str, Tensor], **options: Any
) -> tuple[Any, set[str], set[str]]:
    """A model with these weights, and the names of tensors that were missing or not expected.

    options: for `from_pretrained`. It is given no directory: it would look there for adapters, pickles and more.
    """
    model, info = cls.from_pretrained(None, config=config, state_dict=weights, output_loading_info=True, **options)
    return model, set(info["missing_keys"]), set(info["unexpected_keys"])


def auto_classes(config: Any) -> dict[str, str]:
    """The Auto classes of transformers that take a configuration, and the model class that each builds.

    >>> from transformers import ViTConfig
    >>> auto_classes(ViTConfig())["AutoModelForImageClassification"]
    'ViTForImageClassification'
    """
    found: dict[str, str] = {}
    for name, auto in vars(modeling_auto).items():
        mapping = getattr(auto, "_model_mapping", None) if name.startswith("AutoModel") else None
        cls = None if mapping is None else mapping.get(type(config), None)
        if cls is not None:
            found[name] = (cls[0] if isinstance(cls, tuple) else cls).__name__
    return found


def saved_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Tensor shapes under the names that `save_pretrained` writes (ViT's differ from its modules')."""
    state = revert_weight_conversion(model, model.state_dict())
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def generation_config(content: dict[str, Any], *, of_model: bool = False) -> GenerationConfig:
    """A generation configuration from JSON; `of_model`: from a model's configuration, where older models keep it."""
    return GenerationConfig.from_dict(content, **({"_from_model_config": True} if of_model else {}))


def initialize_anew(model: Any) -> None:
    """Give every weight of a transformers model a fresh start, as at the beginning of a training."""
    for module in model.modules():
        for part in (module, *module.parameters(recurse=False)):
            part._is_hf_initialized = False
    model.initialize_weights()
    model.tie_weights()


def put_tensor(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Put another parameter or buffer in the place of the one of this name."""
    path, _, last = name.rpartition(".")
    owner: Any = model.get_submodule(path)
    (owner._parameters if last in owner._parameters else owner._buffers)[last] = tensor


def has_onednn() -> bool:
    """Whether this torch comes with oneDNN, and with the operation below."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """rows @ weight.T + bias by oneDNN, the operation that torch's compiler takes; slices would be very slow."""
    return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")


def torch_is_overridden() -> bool:
    """Whether somebody counts, records or replaces torch's own operations here, or transforms functions of them."""
    transformed = torch._C._are_functorch_transforms_active()  # torch.func
    return is_in_torch_dispatch_mode() or _is_torch_function_mode_enabled() or transformed


def storage_key(tensor: Tensor) -> int:
    """The same number for all tensors that share their memory."""
    return tensor.untyped_storage()._cdata


# ------------------------------------------------------------------------------------------------------------ FLOPs


def flop_counter(attention: Callable[..., int]) -> FlopCounterMode:
    """PyTorch's counter of FLOPs, with a formula for the attention kernels that it does not know."""
    known = {getattr(torch.ops.aten, name): attention for name in UNCOUNTED if hasattr(torch.ops.aten, name)}
    counter = FlopCounterMode(display=False, custom_mapping=known)
    counter.mod_tracker = _OneModule()
    return counter


class _OneModule(ModuleTracker):
    """Counts for the whole model only: telling modules apart needs autograd, which inference mode does not have."""

    def __enter__(self) -> _OneModule:
        return self

    def __exit__(self, *args: object) -> None:
        """No hooks to remove."""
