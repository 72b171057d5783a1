"""`push_to_hub`: a saved model, with its card, in a repository on the hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

from headcount.errors import HeadcountError, first_line
from headcount.surgery import read_checkpoint, read_config

NOT_PUSHED = ["*.partial", "run.json", "outcomes/*", ".*", "*.pyc"]
LOGIN = "log in with: hf auth login, or set HF_TOKEN"


def push_to_hub(
    directory: str | Path,
    repository: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "Upload a model pruned with headcount",
) -> str:
    """Upload the directory of a saved model to a repository on the hub, which is made if it is not there.

    directory: that `save` wrote, or the run of `headcount prune`, whose model is meant.
    repository: `you/name`. private: of a new repository; None follows your organisation's default.
    revision: the branch to commit to.

    The token is taken from `hf auth login` or the variable HF_TOKEN, and never written or printed. Returns the address
    of the commit.
    """
    folder = pushable(directory)
    api = HfApi()
    disable_progress_bars()
    try:
        where = api.create_repo(repository, private=private, exist_ok=True).repo_id
        if revision is not None:
            api.create_branch(where, branch=revision, exist_ok=True)
        done: CommitInfo = api.upload_folder(
            repo_id=where, folder_path=folder, revision=revision, commit_message=message, ignore_patterns=NOT_PUSHED
        )
    except HFValidationError as error:
        raise HeadcountError(
            f"{repository!r} is not the name of a repository", advice="write it as you/name"
        ) from error
    except Exception as error:  # the hub's client raises errors of many kinds, with or without a network
        raise HeadcountError(f"cannot push to {repository}: {_reason(error)}", advice=_advice(error)) from None
    finally:
        enable_progress_bars()
    return str(done.commit_url)


def pushable(directory: str | Path) -> Path:
    """The directory of a whole model, or the model inside a run; anything else is refused before the hub is asked."""
    folder = Path(directory)
    if not (folder / "config.json").exists() and (folder / "model" / "config.json").is_file():
        folder = folder / "model"
    read_checkpoint(folder)
    read_config(folder)
    return folder


def _reason(error: Exception) -> str:
    """The first line of an error, without the token should a library ever put it there."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    message = getattr(error, "server_message", None) or first_line(error)
    text = f"{status}: {message}" if isinstance(error, HfHubHTTPError) and status else message
    return without_token(text)


def without_token(text: str, token: str | None = None) -> str:
    """A text without anything that looks like a token.

    >>> without_token("Authorization: Bearer hf_abcdefgh and hf_xyz12345")
    'Authorization: Bearer *** and ***'
    """
    token = token or get_token()
    text = text.replace(token, "***") if token else text
    return re.sub(r"\bhf_\w{6,}", "***", text)


def _advice(error: Any) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return LOGIN if status in (401, 403) or "token" in str(error).lower() else "check the connection and try again"
