"""The catalogs that a plan pretrains on, where these are not its sources' own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmd_ray.data.catalog import open_catalog
from benchmd_ray.data.origins import of_one_origin
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import misfits
from benchmd_ray.service.choice import Choice, technique_settings
from benchmd_ray.service.datasets import PlannedDataset, for_pretraining
from benchmd_ray.service.unseen import require_disjoint, seen_of
from benchmd_ray.settings.definition import Settings
from benchmd_ray.ssl import SCRATCH, technique_named
from benchmd_ray.ssl.brought import technique_label


@dataclass(frozen=True)
class Pretraining:
    """One pretraining for each technique and seed, which serves all sources of a plan."""

    whole: PlannedDataset
    """All its catalogs as one dataset."""
    members: tuple[PlannedDataset, ...]
    drafted: set[str] = field(default_factory=set)
    """Names of the items that are in the plan already."""

    @classmethod
    def of(
        cls, choice: Choice, datasets: Sequence[PlannedDataset], notes: list[str]
    ) -> Pretraining | None:
        """That of a choice; None where each source is pretrained on itself.

        Raises:
            BenchmdError: Its catalogs cannot be pretrained on together, no source fits them, or it
                would see patients that are scored.
        """
        if not choice.pretrain_on:
            return None
        whole, *members = for_pretraining(choice.pretrain_on)
        pretraining = cls(whole, tuple(members))
        sources = [dataset for dataset in datasets if dataset.role == "source"]
        if not any(pretraining.fits(source, []) for source in sources):
            source = sources[0]
            faults = "; ".join(misfits(whole.kind.signal, source.kind.signal))
            raise BenchmdError(
                f"no source takes an encoder that was pretrained on {whole.name}: of {source.name} "
                f"{faults}. Name catalogs of one signal with --catalog and --pretrain-on."
            )
        notes.append(
            f"pretrained on {whole.name} ({whole.rows['train']:,} records); scratch and encoders "
            "that are taken as they are, such as imagenet, ignore --pretrain-on."
        )
        for dataset in datasets:
            if dataset.role == "target" and dataset.digest in pretraining.digests:
                notes.append(f"{dataset.name}: not scored, it is pretrained on.")
            else:
                pretraining._require_disjoint(dataset)
        return pretraining

    @property
    def digests(self) -> frozenset[str | None]:
        return frozenset(member.digest for member in self.members)

    def fits(self, source: PlannedDataset, notes: list[str]) -> bool:
        """Whether a source takes its encoder; if not, a note says why."""
        faults = misfits(self.whole.kind.signal, source.kind.signal)
        if faults:
            notes.append(
                f"{source.name}: skipped, it does not take an encoder that was pretrained on "
                f"{self.whole.name}: {'; '.join(faults)}."
            )
        return not faults

    def serves(self, technique: str) -> bool:
        return technique != SCRATCH and technique_named(technique).method is not None

    def name(self, technique: str, seed: int) -> str:
        """Name of the item."""
        about = (self.whole.name, self.whole.policy, technique_label(technique))
        return "/".join([*about, f"seed-{seed}", "pretrain"])

    def settings(self, choice: Choice, technique: str) -> Settings:
        """Settings of its own signals' modality."""
        return technique_settings(choice, self.whole.kind, technique)[0]

    def _require_disjoint(self, dataset: PlannedDataset) -> None:
        """Compare patients where records may be of one origin; a run compares all."""
        alike = [
            member
            for member in self.members
            if member.digest != dataset.digest and of_one_origin(member.name, dataset.name)
        ]
        for member in alike:
            assert member.catalog is not None
            if dataset.catalog is None:
                continue
            catalog = open_catalog(member.catalog)
            entry = {"dataset": member.name, "catalog": member.digest}
            require_disjoint([entry], seen_of(catalog), open_catalog(dataset.catalog))
