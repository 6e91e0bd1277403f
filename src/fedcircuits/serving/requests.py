"""The bodies of requests, one class for each question; the class's docstring describes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

# A value, or an event as an object: {"between": [30, 40]}, {"one_of": [...]}, {"not": ...}, ...
Cell = str | bool | int | float | dict[str, Any] | None
Row = dict[str, Cell]
Unknown = Annotated[
    Literal["error", "missing"], Field(description="what an unseen category is taken for")
]
Impossible = Annotated[
    Literal["error", "nan"], Field(description="what evidence of probability zero gives")
]
ROW: JsonDict = {"age": 40, "sex": "Male", "income": None}


class _Body(BaseModel):
    """A misspelt field is an error, not a default."""

    model_config = ConfigDict(extra="forbid")


class _OfRows(_Body):
    rows: Annotated[
        list[Row], Field(min_length=1, description="rows; an absent or null value is missing")
    ]
    unknown: Unknown = "error"


class _WithEvidence(_Body):
    given: Annotated[Row | None, Field(description="evidence: values by name")] = None
    rows: Annotated[
        list[Row] | None, Field(min_length=1, description="or: one answer for each of these rows")
    ] = None


class LogProb(_OfRows):
    """Log-density of every row in nats, missing values summed out."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"rows": [ROW]}]})


class Mpe(_OfRows):
    """Rows with missing values filled by a most probable completion."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"rows": [ROW]}]})


class PredictProba(_OfRows):
    """Probability of every outcome of one variable, given the other values of each row."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"rows": [{"age": 40}], "target": "income"}]}
    )
    target: Annotated[str, Field(description="name of the variable")]
    impossible: Impossible = "error"


class Sample(_WithEvidence):
    """Exact samples, given nothing, some values, or each of some rows."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"n": 3, "given": {"age": 40}, "seed": 1}]}
    )
    n: Annotated[int, Field(ge=0, description="how many, for each row of evidence")] = 1
    seed: Annotated[int | None, Field(ge=0, description="for the same sample again")] = None
    unknown: Unknown = "error"


class Variance(_WithEvidence):
    """Variance of a number given evidence."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "age", "given": {"sex": "Male"}}]}
    )
    name: Annotated[str, Field(description="name of the variable")]
    impossible: Impossible = "error"
    unknown: Unknown = "error"


class Moment(Variance):
    """Mean of a number given evidence, or of its powers: E[name**order | evidence]."""

    order: Annotated[int, Field(ge=0, le=16, description="1 is the mean")] = 1


class Probability(_WithEvidence):
    """Probability that values or ranges of some variables hold, given others."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"event": {"hours": {"above": 50}}, "given": {"age": {"between": [30, 40]}}}
            ]
        }
    )
    event: Annotated[Row, Field(min_length=1, description="values or events by name; all hold")]
    impossible: Impossible = "error"
    unknown: Unknown = "error"


class Cdf(Variance):
    """Probability that a number is at most x given evidence: P(name <= x | evidence)."""

    x: Annotated[
        list[float | str], Field(min_length=1, description="where, numbers or dates: P(name <= x)")
    ]


class Quantile(Variance):
    """Quantiles of a number given evidence: 0.5 is the median."""

    p: Annotated[list[float], Field(min_length=1, description="shares between 0 and 1")]


class Interval(Variance):
    """The range in the middle that holds a number with that probability."""

    level: Annotated[float, Field(gt=0, lt=1, description="probability of the interval")] = 0.9


class Impute(_OfRows):
    """Rows with missing values filled: means of numbers, likeliest values of categories."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"rows": [ROW]}]})


class _OfNames(_Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"names": ["age"], "given": {"sex": "Male"}}]}
    )
    names: Annotated[list[str] | None, Field(description="variables; all that fit")] = None
    given: Annotated[Row | None, Field(description="evidence: values by name")] = None


class Marginals(_OfNames):
    """The distribution of single variables: probabilities, or mean and standard deviation."""


class Covariance(_OfNames):
    """Covariance matrix of numeric variables."""


class MutualInformation(_OfNames):
    """Mutual information of all pairs of some variables, in nats."""


class Entropy(_OfNames):
    """Entropy of some discrete variables together, in nats."""

    names: Annotated[list[str], Field(min_length=1, description="discrete variables, together")]


class Explore(_Body):
    """What the page at /explore asks: evidence, and clients that are switched off."""

    given: Annotated[Row, Field(description="evidence: values or events by name")] = {}
    without: Annotated[list[str], Field(description="clients that are switched off")] = []


# The questions by the name of their path, which is that of a method of `Questions`.
QUESTIONS: dict[str, type[_Body]] = {
    "log_prob": LogProb,
    "predict_proba": PredictProba,
    "mpe": Mpe,
    "sample": Sample,
    "moment": Moment,
    "variance": Variance,
    "probability": Probability,
    "cdf": Cdf,
    "quantile": Quantile,
    "interval": Interval,
    "impute": Impute,
    "mutual_information": MutualInformation,
    "entropy": Entropy,
    "covariance": Covariance,
    "marginals": Marginals,
}
