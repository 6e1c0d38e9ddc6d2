"""Files of weights of published encoders: where they are here, and how they come here.

They are in ``BENCHMD_ENCODERS/NAME``, by default in the folder ``encoders`` of the cache, or in the
cache of the Hugging Face hub. Only `fetch` and `ensure_weights` ask the hub for anything.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

import torch

from benchmd_ray.errors import BenchmdError, first_line
from benchmd_ray.extensions.extras import importing
from benchmd_ray.files.atomic import TEMPORARY, cache_folder, replacing, sha256
from benchmd_ray.models.encoder_cards import EncoderCard, Weights

ENCODERS = "BENCHMD_ENCODERS"
TIMEOUT = 10.0
"""Seconds for the hub's first answer."""


def encoders_folder() -> Path:
    return Path(os.environ.get(ENCODERS) or cache_folder() / "encoders")


def weights_here(card: EncoderCard) -> Path | None:
    """The file of a card's weights on this machine; None if it is not here."""
    path = _place(card)
    if path.is_file():
        return path
    if not card.weights.repository:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:  # an extra; then there is no cache of it either
        return None
    weights = card.weights
    found = try_to_load_from_cache(
        weights.repository, weights.file, revision=weights.revision or None
    )
    return Path(found) if isinstance(found, str) else None


def require_weights(card: EncoderCard) -> Path:
    """The file of a card's weights; nothing is fetched."""
    path = weights_here(card)
    if path is None:
        raise BenchmdError(absent(card))
    return path


def ensure_weights(card: EncoderCard) -> None:
    """Fetch a card's weights unless they are here; refuse those that have terms, or another hash.

    Called before any work, so that a plan does not fail in the middle.
    """
    path = weights_here(card)
    if path is not None:
        _require_hash(path, card)
    elif is_free(card):
        fetch(card)
    else:
        raise BenchmdError(absent(card))


def is_free(card: EncoderCard) -> bool:
    """Whether the weights can be fetched from the hub without accepting anything."""
    return bool(card.weights.repository) and not card.terms


def absent(card: EncoderCard) -> str:
    """What to do about weights that are not here."""
    why = f"they have terms ({card.terms})" if card.terms else f"see {card.weights.address}"
    return (
        f"the weights of {card.title} are not on this machine: {why}. Fetch them first by `benchmd "
        f"encoder fetch {card.name}`; nodes of a cluster need {ENCODERS} in a folder that all "
        "share."
    )


def fetch(card: EncoderCard) -> Path:
    """Download a card's weights from the hub, whole and with the card's hash, or not at all.

    Terms are the caller's business.

    Raises:
        BenchmdError: The hub cannot be reached or refuses, the revision has gone, the file has
            another hash, or it cannot be written.
    """
    weights, path = card.weights, _place(card)
    with importing("huggingface_hub", f"fetching the weights of {card.title}", _by_hand(card)):
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # our errors say it once
    repository, name, revision = weights.repository, weights.file, weights.revision or None
    try:
        # Asked once: a download without a connection tries for half a minute.
        get_hf_file_metadata(hf_hub_url(repository, name, revision=revision), timeout=TIMEOUT)
        with (
            replacing(path) as target,
            tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=path.parent) as folder,
        ):
            file = hf_hub_download(repository, name, revision=revision, local_dir=folder)
            _require_hash(Path(file), card, f"{name} of {repository}")
            os.replace(file, target)
    except BenchmdError:  # another hash, or a full disk
        raise
    except Exception as error:  # the hub's own errors, the connection's, or the folder's
        raise _not_fetched(card, error) from error
    return path


def take(card: EncoderCard, file: Path) -> Path:
    """Copy a file of weights that the user has downloaded.

    Its hash has to be the card's; where the card has none, it has to be readable as tensors.
    """
    if not file.is_file():
        raise BenchmdError(f"there is no file {file}: expected {card.weights.file}.")
    if file.suffix != Path(card.weights.file).suffix:
        raise BenchmdError(
            f"{file} ends in {file.suffix or 'nothing'}, and the weights of {card.title} are "
            f"{card.weights.file}: name that file, from {card.weights.address}."
        )
    if not card.weights.sha256:
        read_tensors(file, card)
    path = _place(card)
    with replacing(path) as partial:
        shutil.copyfile(file, partial)
        _require_hash(partial, card, str(file))
    return path


def read_tensors(path: Path, card: EncoderCard) -> dict[str, torch.Tensor]:
    """Tensors of a file of weights by name; nothing else in it is read, and nothing is executed."""
    _require_hash(path, card)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever is in the file
        raise BenchmdError(
            f"{path} cannot be read as tensors alone ({first_line(error)}): expected a "
            "state_dict. TorchScript and files with objects of other classes are refused, as "
            f"reading them would run code. Get {card.weights.file} from {card.weights.address}."
        ) from error
    return _state_of(content, card.weights, path)


def _state_of(content: object, weights: Weights, path: Path) -> dict[str, torch.Tensor]:
    for key in filter(None, weights.names.within.split(".")):
        content = content.get(key) if isinstance(content, dict) else None
    if not isinstance(content, dict):
        raise BenchmdError(
            f"{path} has no tensors at {weights.names.within or 'its top'}: expected a state_dict. "
            f"Get {weights.file} from {weights.address}."
        )
    return {str(k): v for k, v in content.items() if isinstance(v, torch.Tensor)}


def _place(card: EncoderCard) -> Path:
    return encoders_folder() / card.name / Path(card.weights.file).name


def _require_hash(path: Path, card: EncoderCard, what: str = "") -> None:
    wanted = card.weights.sha256
    if wanted and (actual := sha256(path)) != wanted:
        raise BenchmdError(
            f"{what or path} has the SHA-256 {actual}, expected {wanted} by the card of "
            f"{card.title}: it is damaged, or another version. Get {card.weights.file}"
            f"{f' of revision {card.weights.revision}' if card.weights.revision else ''} from "
            f"{card.weights.address}."
        )


def _by_hand(card: EncoderCard) -> str:
    return (
        f"Or download {card.weights.file} from {card.weights.address} by hand, and `benchmd "
        f"encoder fetch {card.name} --from FILE`."
    )


def _not_fetched(card: EncoderCard, error: Exception) -> BenchmdError:
    """What the hub's error means, without its text, which may name tokens or addresses."""
    from huggingface_hub import errors

    weights = card.weights
    where = f"{weights.file} of {weights.repository}"
    if isinstance(error, errors.GatedRepoError):
        why = f"is only given to those who accepted its terms at {weights.address} and logged in"
        return BenchmdError(f"{where} {why}: accept them, then `hf auth login`, and fetch again.")
    if isinstance(error, errors.RevisionNotFoundError):
        why = f"is no longer there in revision {weights.revision}, which the card names"
    elif isinstance(error, errors.RepositoryNotFoundError):
        why = "cannot be found: the repository has gone or needs a login"
    elif isinstance(error, errors.EntryNotFoundError) and not isinstance(
        error, errors.LocalEntryNotFoundError
    ):
        why = "is not in the repository"
    elif isinstance(error, errors.OfflineModeIsEnabled):
        why = "cannot be fetched, as HF_HUB_OFFLINE is set"
    elif isinstance(error, errors.HfHubHTTPError):
        why = f"cannot be fetched: the hub answers {error.response.status_code}"
    elif isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
        why = f"cannot be stored in {_place(card).parent}: {os.strerror(error.errno)}"
    else:
        why = f"cannot be fetched, as the hub cannot be reached ({type(error).__name__})"
    return BenchmdError(f"{where} {why}. {_by_hand(card)}")
