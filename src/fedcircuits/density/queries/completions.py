"""Completions of rows: most probable values, samples and imputations; images where images came."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray
from fedcircuits.density.evidence import (
    Given,
    TakesEvidence,
    generator,
    is_one,
    query,
    whole_number,
)
from fedcircuits.density.pictures import Pictures
from fedcircuits.errors import QueryError
from fedcircuits.schema import Data, images
from fedcircuits.schema.table import Unknown

SAMPLED_AT_ONCE = 250_000  # rows

Seed = int | np.random.Generator | None
# Evidence that cannot be images, so that the answer is a DataFrame.
Tabular = (
    Mapping[str, Any] | pd.DataFrame | Sequence[Mapping[str, Any]] | str | os.PathLike[str] | None
)


class Completions(TakesEvidence):
    """Queries that answer with whole rows: DataFrames, or images where images came in.

    As images the answer has only the pixels: ask with `as_images=False` for all variables.
    """

    @overload
    def mpe(
        self,
        rows: Tabular = None,
        *,
        unknown: Unknown = "error",
        as_images: Literal[False] | None = None,
    ) -> pd.DataFrame: ...

    @overload
    def mpe(
        self,
        rows: Given | None = None,
        *,
        unknown: Unknown = "error",
        as_images: bool | None = None,
    ) -> Any: ...

    @query  # type: ignore[misc]  # it makes `self` positional only, which overloads are not
    def mpe(
        self,
        rows: Given | None = None,
        *,
        unknown: Unknown = "error",
        as_images: bool | None = None,
    ) -> Any:
        """Rows with every missing cell filled by a most probable completion.

        `answer.attrs["method"]` says "exact" where the circuit is deterministic and "decoding"
        elsewhere: the better of the likeliest single tree (max-product) and of the likeliest branch
        at each sum. `answer.attrs["log_prob"]` lists the values of the completions. An array of
        images has no such attributes.

        Args:
            rows: values or events by name, rows, or images masked where a pixel is unknown.
            unknown: whether an unseen category is an error or a missing value.
            as_images: whether the answer is an array of images; by default where images came in.
        """
        table = self._evidence(rows, unknown)
        self._check_possible(table, "error")
        values, log_prob = self.completed_table(table)
        answer = self._completed(values, table.index, rows, as_images)
        if isinstance(answer, pd.DataFrame):
            answer.attrs["log_prob"] = log_prob.tolist()
            answer.attrs["method"] = "exact" if self.mpe_is_exact else "decoding"
        return answer

    @overload
    def sample(
        self,
        n: int | None = None,
        given: Tabular = None,
        *,
        seed: Seed = None,
        unknown: Unknown = "error",
        as_images: Literal[False] | None = None,
    ) -> pd.DataFrame: ...

    @overload
    def sample(
        self,
        n: int | None = None,
        given: Given | None = None,
        *,
        seed: Seed = None,
        unknown: Unknown = "error",
        as_images: bool | None = None,
    ) -> Any: ...

    @query  # type: ignore[misc]  # it makes `self` positional only, which overloads are not
    def sample(
        self,
        n: int | None = None,
        given: Given | None = None,
        *,
        seed: Seed = None,
        unknown: Unknown = "error",
        as_images: bool | None = None,
    ) -> Any:
        """Exact samples, unconditional or given evidence.

        Args:
            n: how many; with `given` rows, how many for each row (then in row order).
            given: values or events by name, rows in which missing cells are to be drawn, or images
                in which masked pixels are.
            seed: an integer or Generator for the same sample again.
            unknown: whether an unseen category is an error or a missing value.
            as_images: whether the answer is an array of images; by default where images came in.
        """
        times = 1 if n is None else whole_number(n, "sample needs a whole number of samples >= 0")
        rng = generator(seed)
        table = self._evidence(given, unknown)
        self._check_possible(table, "error")
        which = np.repeat(np.arange(len(table)), times)
        # In blocks: the passes of a circuit take several times the memory of what they draw.
        starts = range(0, max(which.size, 1), SAMPLED_AT_ONCE)
        drawn = [
            self.sample_table(table.rows(which[start : start + SAMPLED_AT_ONCE]), rng)
            for start in starts
        ]
        index = pd.RangeIndex(which.size) if is_one(given) else table.index[which]
        if isinstance(given, np.ndarray) and images.is_images(given):
            given = given[which]
        return self._completed(np.concatenate(drawn), index, given, as_images)

    @query
    def impute(
        self,
        rows: Data,
        how: Literal["mean", "likeliest", "sample"] = "mean",
        *,
        draws: int | None = None,
        seed: Seed = None,
        unknown: Unknown = "error",
        as_images: bool | None = None,
    ) -> Any:
        """Rows with the missing cells filled, each given what is observed in its row.

        Args:
            rows: rows with gaps, or images with masked pixels; observed cells come back as they
                were.
            how: "mean" gives the mean of a number (rounded where the numbers are whole) and the
                likeliest value of a category, each by itself; "likeliest" the joint most probable
                completion; "sample" a draw of all gaps together.
            draws: how many completions to draw: then the answer is a list of DataFrames (or of
                arrays of images), as multiple imputation needs it, and `how` is "sample".
            seed: of the draws.
            unknown: whether an unseen category is an error or a missing value.
            as_images: whether the answer is an array of images; by default where images came in.
        """
        table = self._rows(rows, unknown)
        self._check_possible(table, "error")

        def filled(values: FloatArray) -> Any:
            whole = np.where(table.observed, table.values, values)
            return self._completed(whole, table.index, rows, as_images)

        if draws is not None:
            times = whole_number(draws, "draws is a whole number of completions >= 0")
            every = table.rows(np.tile(np.arange(len(table)), times))  # all draws in one step
            drawn = self.sample_table(every, generator(seed))
            return [filled(v) for v in drawn.reshape(times, len(table), len(self.schema))]
        if how == "likeliest":
            return filled(self.mpe_table(table))
        if how == "sample":
            return filled(self.sample_table(table, generator(seed)))
        if how == "mean":
            return filled(self._conditional_means(table))
        raise QueryError(f"how is 'mean', 'likeliest' or 'sample', found {how!r}")

    # --- images -----------------------------------------------------------------------------------

    def to_images(self, frame: pd.DataFrame) -> NDArray[np.generic]:
        """Return rows that this model gave as images (n, h, w) or (n, h, w, 3) of levels 0..255.

        Pixels kept as Y, Co and Cg come back in red, green and blue; columns that are no pixels are
        left out; pixels that the rows lack are masked.
        """
        names = [name for name in frame.columns if name in self.schema]
        values = frame[names].apply(pd.to_numeric, errors="coerce").to_numpy(float, na_value=np.nan)
        return images.images_from_pixels(names, values)

    def sample_images(
        self, n: int = 16, given: Given | None = None, *, seed: Seed = None
    ) -> Pictures:
        """Return samples as images that draw themselves: `.save("grid.png")` writes a grid."""
        return Pictures(self.sample(n, given, seed=seed, as_images=True))
