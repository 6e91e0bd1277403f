"""The queries of a circuit whose leaves are whole densities, each in at most two steps.

Every query asks its parts through `density.batched.ask` and nowhere else: first the log-density of
the evidence under every part, from which sums and products give each part's posterior probability
(its flow); then, all together, what is wanted of the parts themselves. So it makes no difference
whether a part is here or stays with a client, and the number of steps does not grow with the parts.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import pandas as pd

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.evaluation_plan import EvaluationPlan
from fedcircuits.circuits.passes import down, max_product, sum_product, up
from fedcircuits.circuits.queries.covariance import carry_up
from fedcircuits.circuits.queries.moments import total_variance
from fedcircuits.circuits.queries.restrict import fold_evidence
from fedcircuits.circuits.queries.walk import at_random, choice_slots, likeliest, walk
from fedcircuits.circuits.structure import Structure
from fedcircuits.circuits.structure_builder import StructureBuilder
from fedcircuits.density import Density, outcome_codes
from fedcircuits.density.batched import Pending, Question, ask, own_rows, settle
from fedcircuits.density.hooks import normalised
from fedcircuits.schema import Table

ROWS_PER_CHUNK = 4096
ROWS_PER_MESSAGE = 65_536


class OverParts(Density):
    """A density that is sums and products over other densities, its parts.

    Attributes:
        parts: the leaves; each over some of the names of the schema, with the same encoding.
        structure: sums and products; leaf i is parts[i].
    """

    parts: tuple[Density, ...]
    structure: Structure

    @property
    @abstractmethod
    def columns(self) -> tuple[IntArray, ...]:
        """Positions of each part's variables in the schema."""

    @property
    @abstractmethod
    def plan(self) -> EvaluationPlan:
        """The order of evaluation."""

    @abstractmethod
    def _restricted(
        self,
        keep: tuple[str, ...],
        parts: list[Density],
        which: list[int],
        graph: StructureBuilder,
        root: int,
    ) -> Density:
        """The density over `keep` below a root; its parts were made of the parts `which`."""

    def _rows_at_once(self, numbers_per_row: int = 1) -> int:
        """Rows in a chunk: few enough for memory; by message, as many as go into one."""
        if any(part.place is not None for part in self.parts):
            return ROWS_PER_MESSAGE
        return max(1, min(ROWS_PER_CHUNK, 2**20 // numbers_per_row))

    @property
    def _may_lack_values(self) -> bool:
        return any(variable.missing_state for variable in self.schema)

    # --- log-densities and flows ------------------------------------------------------------------

    def _values(self, rows: Table) -> FloatArray:
        """(n_nodes, n) log-density of the evidence below every node."""
        return self._summed(ask([Question(part, "log_prob", rows) for part in self.parts]))

    def _summed(self, log_probs: list[FloatArray]) -> FloatArray:
        """(n_nodes, n) log-density below every node, from those of the parts, each (n,)."""
        values = np.zeros((self.structure.n_nodes, len(log_probs[0])))
        values[: len(log_probs)] = log_probs
        up(self.plan, values, sum_product)
        return values

    def _flows(self, values: FloatArray) -> FloatArray:
        """(n_parts, n) posterior probability of each part, from values (n_nodes, n)."""
        flows = np.zeros_like(values)
        flows[-1] = values[-1] > -np.inf
        down(self.plan, values, flows)
        return flows[: len(self.parts)]

    def log_prob_table(self, table: Table) -> FloatArray:
        answer = np.empty(len(table))
        for where, rows in table.chunks(self._rows_at_once()):
            answer[where] = self._values(rows)[-1]
        return answer

    # --- completions ------------------------------------------------------------------------------

    def sample_table(self, table: Table, rng: np.random.Generator) -> FloatArray:
        # Trees chunk by chunk, each part's values for all rows at once: see `queries.sampling`.
        lowest = np.array([columns.min() for columns in self.columns])
        slots = choice_slots(self.structure, lowest)
        visits: list[list[IntArray]] = [[] for _ in self.parts]
        for where, rows in table.chunks(self._rows_at_once()):
            choose = at_random(slots, rng.random((len(rows), int(slots.max()) + 1)))
            leaves, leaf_rows = walk(self.plan, self._values(rows), choose)
            for at in np.unique(leaves):
                visits[at].append(where.start + np.sort(leaf_rows[leaves == at]))
        chosen = {at: np.concatenate(mine) for at, mine in enumerate(visits) if mine}
        drawn = ask(
            [
                Question(self.parts[at], "sample", table, mine, seed=int(rng.integers(2**62)))
                for at, mine in chosen.items()
            ]
        )
        answer = table.values.copy()
        for (at, mine), values in zip(chosen.items(), drawn, strict=True):
            answer[np.ix_(mine, self.columns[at])] = values
        return answer

    def mpe_table(self, table: Table) -> FloatArray:
        return self.completed_table(table)[0]

    def completed_table(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """The better, row by row, of the two decodings of `queries.mpe` above the parts' own."""
        answer, log_prob = table.values.copy(), np.empty(len(table))
        n_parts = len(self.parts)
        for where, rows in table.chunks(max(1, self._rows_at_once() // 2)):
            questions = [Question(part, "mpe", rows) for part in self.parts]
            if not self.mpe_is_exact:
                questions += [Question(part, "log_prob", rows) for part in self.parts]
            found = ask(questions)
            completed = [each[:, :-1] for each in found[:n_parts]]  # each (n, D of the part)
            values = np.zeros((self.structure.n_nodes, len(rows)))
            values[:n_parts] = [each[:, -1] for each in found[:n_parts]]
            up(self.plan, values, max_product)
            best, level = self._joined(rows, values, completed), values[-1]
            if not self.mpe_is_exact:
                other = self._joined(rows, self._summed(found[n_parts:]), completed)
                best, level = self._better(best, other)
            answer[where], log_prob[where] = best, level
        return answer, log_prob

    def _joined(self, rows: Table, values: FloatArray, completed: list[FloatArray]) -> FloatArray:
        """(n, D) the parts' completions along the likeliest tree by values (n_nodes, n)."""
        leaves, leaf_rows = walk(self.plan, values, likeliest)
        answer = rows.values.copy()
        for at, filled in enumerate(completed):
            mine = leaf_rows[leaves == at]
            answer[np.ix_(mine, self.columns[at])] = filled[mine]
        return answer

    def _better(self, one: FloatArray, two: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(n, D) in each row the likelier of two completions, and (n,) its log-density."""
        differ = np.flatnonzero((one != two).any(axis=1))
        both = np.concatenate([one, two[differ]])  # evaluated at once: one step
        known = np.ones(both.shape, dtype=bool)
        found = self.log_prob_table(Table(self.schema, both, known, pd.RangeIndex(len(both))))
        level, second = found[: len(one)], found[len(one) :]
        better = second > level[differ]
        one[differ[better]], level[differ[better]] = two[differ[better]], second[better]
        return one, np.asarray(level)

    # --- moments ----------------------------------------------------------------------------------

    def moment_table(self, table: Table, order: int) -> FloatArray:
        return np.asarray(self._raw_moments(table, [order])[0])

    def _moments(self, table: Table, order: int) -> FloatArray:
        if not self._may_lack_values:
            return self.moment_table(table, order)
        raw, there = self._raw_moments(table, [order, 0])
        with np.errstate(invalid="ignore"):
            return np.asarray(raw / there)

    def _raw_moments(self, table: Table, orders: list[int]) -> FloatArray:
        """(len(orders), n, D) moments as `moment_table` gives them."""
        answer = np.zeros((len(orders), len(table), len(self.schema)))
        for where, rows in table.chunks(self._rows_at_once()):
            flows = self._flows(self._values(rows))
            answer[:, where] = settle([self._mean_moments(rows, flows, orders)])[0]
        return answer

    def _mean_moments(self, rows: Table, flows: FloatArray, orders: list[int]) -> Pending:
        """(len(orders), n, D) moments of the parts, averaged by flows (n_parts, n)."""
        live = _live(flows)
        asked = [(i, at) for i in range(len(orders)) for at in live]
        questions = [
            Question(self.parts[at], "moment", rows, live[at], order=orders[i]) for i, at in asked
        ]

        def combine(found: list[FloatArray]) -> FloatArray:
            total = np.zeros((len(orders), len(rows), len(self.schema)))
            for (i, at), moment in zip(asked, found, strict=True):
                with np.errstate(invalid="ignore"):  # infinite to both sides: no such moment
                    weighted = flows[at, live[at], None] * moment
                    total[i][np.ix_(live[at], self.columns[at])] += weighted
            return total

        return Pending(questions, combine)

    def variance_table(self, table: Table) -> FloatArray:
        """By the law of total variance over the parts."""
        answer = np.zeros((len(table), len(self.schema)))
        in_a_row = sum(columns.size for columns in self.columns)
        for where, rows in table.chunks(self._rows_at_once(in_a_row)):
            flows = self._flows(self._values(rows))
            live = _live(flows)
            pending = [self._spread(at, rows, which) for at, which in live.items()]
            by_column: list[list[FloatArray]] = [[] for _ in self.schema]
            for (at, mine), spread in zip(live.items(), settle(pending), strict=True):
                for j, column in enumerate(self.columns[at]):
                    own = np.zeros((3, len(rows)))  # weight, mean, variance
                    own[:, mine] = spread[:, :, j]
                    own[0, mine] *= flows[at, mine]
                    by_column[column].append(own)
            for column, over in enumerate(by_column):
                answer[where, column] = total_variance(*np.stack(over, axis=1)) if over else np.nan
        return answer

    def _spread(self, at: int, rows: Table, which: IntArray) -> Pending:
        """(3, m, D) of a part: probability of a value, its mean and its variance in m rows."""
        part = self.parts[at]
        lacking = any(variable.missing_state for variable in part.schema)
        questions = [
            Question(part, "variance", rows, which),
            Question(part, "moment", rows, which, order=1),
            *([Question(part, "moment", rows, which, order=0)] if lacking else []),
        ]

        def combine(found: list[FloatArray]) -> FloatArray:
            there = found[2] if lacking else np.ones_like(found[1])
            mean = _mean_of_value(found[1], there)
            return np.stack([there, mean, np.nan_to_num(found[0], posinf=np.inf)])

        return Pending(questions, combine)

    def covariance_table(self, evidence: Table, columns: list[int]) -> FloatArray:
        """Means and cross-moments of the parts, carried up about the overall means.

        (Where "missing" is a state, its value counts as the mean of its part.)
        """
        d, values = len(columns), self._values(evidence)
        flows, log_prob = self._flows(values), values[:, 0]
        held = {}  # by part, the positions in `columns` that it holds
        for at, own in enumerate(self.columns):
            inside = [i for i, column in enumerate(columns) if column in own]
            if inside and not np.isneginf(log_prob[at]):
                held[at] = inside
        questions = []
        for at, inside in held.items():
            names = tuple(self.schema.names[columns[i]] for i in inside)
            questions += [
                Question(self.parts[at], "moment", evidence, order=1),
                Question(self.parts[at], "moment", evidence, order=0),
                Question(self.parts[at], "covariance", evidence, columns=names),
            ]
        answers = ask(questions)
        first, there = np.zeros((len(self.parts), d)), np.zeros((len(self.parts), d))
        for i, (at, inside) in enumerate(held.items()):
            place = {int(column): j for j, column in enumerate(self.columns[at])}
            own_columns = [place[columns[j]] for j in inside]
            first[at, inside] = answers[3 * i][0, own_columns]
            there[at, inside] = answers[3 * i + 1][0, own_columns]
        with np.errstate(invalid="ignore"):
            total = np.where(flows > 0, flows * first, 0.0).sum(axis=0)
        centre = _mean_of_value(total, (flows * there).sum(axis=0))  # (d,)
        mean = np.zeros((self.structure.n_nodes, d))
        cross = np.zeros((self.structure.n_nodes, d, d))
        for i, (at, inside) in enumerate(held.items()):
            mean[at, inside] = (_mean_of_value(first[at], there[at]) - centre)[inside]
            apart = np.outer(mean[at, inside], mean[at, inside])
            cross[np.ix_([at], inside, inside)] = answers[3 * i + 2] + apart
        return carry_up(self.plan, log_prob, mean, cross)

    @property
    def answers_events(self) -> bool:
        """Whether events are answered exactly: where all parts answer them."""
        return all(part.answers_events for part in self.parts)

    # --- posteriors -------------------------------------------------------------------------------

    def posterior_table(self, table: Table, column: int) -> FloatArray:
        codes = outcome_codes(self.schema.variables[column])
        answer = np.zeros((len(table), codes.size))
        size = max(1, self._rows_at_once() // (codes.size if self._needs_joints(column) else 1))
        for where, rows in table.hide(column).chunks(size):
            flows = None if self._needs_joints(column) else self._flows(self._values(rows))
            every = np.arange(len(rows))
            answer[where] = settle([self._posterior(rows, flows, column, every)])[0]
        return answer

    def _needs_joints(self, column: int) -> bool:
        """Whether parts leave different mass outside the outcomes of a variable.

        Then a mean of their posteriors is not the posterior, and each joint density is needed.
        """
        variable = self.schema.variables[column]
        return not variable.is_coded or variable.missing_state

    def _posterior(
        self, rows: Table, flows: FloatArray | None, column: int, which: IntArray
    ) -> Pending:
        """(m, k) posterior of a variable: that of the parts, averaged by their flows.

        Args:
            rows: evidence.
            flows: (n_parts, n) given that evidence; not looked at where joints are needed.
            column: the variable, which is not observed in the rows that are wanted.
            which: (m,) numbers of the rows that are wanted.
        """
        if flows is None or self._needs_joints(column):
            return self._posterior_by_joints(rows.rows(which), column)
        variable = self.schema.variables[column]
        live = {at: w for at, w in _live(flows[:, which]).items() if column in self.columns[at]}
        questions = [
            Question(self.parts[at], "posterior", rows, which[mine], columns=(variable.name,))
            for at, mine in live.items()
        ]

        def combine(found: list[FloatArray]) -> FloatArray:
            total = np.zeros((which.size, len(variable.categories)))
            for (at, mine), posterior in zip(live.items(), found, strict=True):
                total[mine] += flows[at, which[mine], None] * posterior
            with np.errstate(invalid="ignore"):
                return np.asarray(total / total.sum(axis=1, keepdims=True))

        return Pending(questions, combine)

    def _posterior_by_joints(self, rows: Table, column: int) -> Pending:
        """(n, k) posterior of a variable from the joint density with each of its k outcomes."""
        codes = outcome_codes(self.schema.variables[column])
        joint = rows.rows(np.tile(np.arange(len(rows)), codes.size))  # (k n, D)
        joint.values[:, column] = np.repeat(codes, len(rows))
        joint.observed[:, column] = True
        holds = [column in columns for columns in self.columns]
        asked = zip(self.parts, holds, strict=True)
        questions = [Question(part, "log_prob", joint if own else rows) for part, own in asked]

        def combine(found: list[FloatArray]) -> FloatArray:
            whole = zip(found, holds, strict=True)
            log_probs = [each if own else np.tile(each, codes.size) for each, own in whole]
            return normalised(self._summed(log_probs)[-1].reshape(codes.size, -1).T)

        return Pending(questions, combine)

    def _conditional_means(self, table: Table) -> FloatArray:
        answer = np.zeros((len(table), len(self.schema)))
        orders = [1, 0] if self._may_lack_values else [1]
        for where, rows in table.chunks(self._rows_at_once()):
            flows = self._flows(self._values(rows))
            gaps = [np.flatnonzero(~seen) for seen in rows.observed.T]
            coded = [at for at, v in enumerate(self.schema) if v.is_coded and gaps[at].size]
            pending = [self._posterior(rows, flows, at, gaps[at]) for at in coded]
            found = settle([self._mean_moments(rows, flows, orders), *pending])
            with np.errstate(invalid="ignore"):
                means = found[0][0] / found[0][1] if len(orders) > 1 else found[0][0]  # (n, D)
            for at, posterior in zip(coded, found[1:], strict=True):
                means[gaps[at], at] = posterior.argmax(axis=1)
            for at, variable in enumerate(self.schema):
                if variable.kind == "count" and at not in coded:
                    means[gaps[at], at] = np.round(means[gaps[at], at])
            answer[where] = self._inside_events(rows, means)
        return answer

    # --- new densities ----------------------------------------------------------------------------

    def restrict(self, keep: tuple[str, ...], evidence: Table) -> Density:
        log_prob = self._values(evidence)[:, 0]
        graph, parts, which = StructureBuilder(), [], []
        new = np.full(len(self.parts), -1, dtype=np.int64)
        for at, part in enumerate(self.parts):
            kept = tuple(name for name in part.schema.names if name in keep)
            if not kept or np.isneginf(log_prob[at]):
                continue
            mine = own_rows(part, evidence)
            whole = len(kept) == len(part.schema) and not mine.known.any()
            parts.append(part if whole else part.restrict(kept, mine))
            which.append(at)
            new[at] = graph.number(1)[0]
        root = fold_evidence(self.structure, log_prob, new, graph)
        return self._restricted(keep, parts, which, graph, root)


def _live(flows: FloatArray) -> dict[int, IntArray]:
    """By part the rows in which it has positive probability, from flows (n_parts, n)."""
    found = {at: np.flatnonzero(flow > 0) for at, flow in enumerate(flows)}
    return {at: rows for at, rows in found.items() if rows.size}


def _mean_of_value(first: FloatArray, there: FloatArray) -> FloatArray:
    """Mean of the value given that there is one, 0 where there cannot be; shapes are kept."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(np.asarray(first / there), posinf=np.inf, neginf=-np.inf)
