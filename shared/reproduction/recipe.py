"""Table recipes: what a table of a paper consists of, read and checked from ``configs/<paper>/<table>.yaml``.

A recipe lists rows x columns x seeds, the configuration each of them stands for, the published figures to
compare with and the claims to test. `Recipe.at(profile)` gives the recipe as that profile sees it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from shared import paths
from shared.errors import UserError, suggest

OPERATORS = (">=", "<=", ">", "<")


@dataclass(frozen=True)
class Entry:
    """One row or one column: a label and the configuration it stands for."""

    id: str
    label: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    metric: str | None = None
    unit: str | None = None
    value: float | None = None  # place on a plot's x axis
    published: str | None = None  # its name in the published table


@dataclass(frozen=True)
class Selector:
    """The cells whose mean, seed by seed, is one side of a claim; ``"*"`` selects all."""

    row: str | list[str] = "*"
    column: str | list[str] = "*"
    metric: str | None = None


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that is tested on values paired over seeds."""

    id: str
    says: str
    source: str
    kind: str  # difference | ratio | function
    holds_if: str
    left: Selector | None = None
    right: Selector | None = None
    function: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    profiles: tuple[str, ...] | None = None  # None: every profile
    metric: str | None = None
    unit: str = ""
    interval: str = "t"
    level: float = 0.95

    @property
    def condition(self) -> tuple[str, float]:
        """The operator and the threshold of `holds_if`, for instance ``(">", 0.0)``."""
        return parse_condition(self.holds_if)


@dataclass(frozen=True)
class Profile:
    """One scale at which a table can be run, with what it changes in the table."""

    name: str
    seeds: tuple[int, ...]
    minutes: float | None = None  # expected on the profile's machine, for the whole table
    memory_gb: float | None = None  # device memory that one run needs
    disk_gb: float | None = None  # what one run leaves in the store
    config: dict[str, Any] = field(default_factory=dict)
    replaces: dict[str, Any] = field(default_factory=dict)  # rows, columns, published, ... of the recipe


@dataclass(frozen=True)
class Recipe:
    """One table of one paper."""

    paper: str
    table: str
    path: Path
    title: str
    rows: dict[str, Entry]
    columns: dict[str, Entry]
    profiles: dict[str, Profile]
    metric: str
    about: str = ""
    default: bool = False
    unit: str = ""
    scale: float = 1.0
    higher_is_better: bool = True
    config: dict[str, Any] = field(default_factory=dict)
    published: str | None = None
    tolerance: float | None = None
    claims: tuple[Claim, ...] = ()
    plots: dict[str, Any] = field(default_factory=dict)
    figures: tuple[str, ...] = ()

    def at(self, profile: str) -> Recipe:
        """The recipe as `profile` sees it: its rows, columns and published figures, and only its claims."""
        if profile not in self.profiles:
            raise UserError(
                f"{self.paper}/{self.table} has no profile {profile!r}, only: {', '.join(self.profiles)}."
                + suggest(profile, self.profiles)
            )
        claims = tuple(claim for claim in self.claims if claim.profiles is None or profile in claim.profiles)
        return replace(self, claims=claims, **self.profiles[profile].replaces)

    def row(self, name: str) -> Entry:
        """The row called `name`; an unknown one is a `UserError` that offers the nearest."""
        return _pick("row", name, self.rows, self)

    def column(self, name: str) -> Entry:
        """The column called `name`; an unknown one is a `UserError` that offers the nearest."""
        return _pick("column", name, self.columns, self)


def check_paper(paper: str) -> None:
    """Raise a `UserError` that offers the nearest name when there is no paper called `paper`."""
    if paper not in paths.papers():
        known = ", ".join(paths.papers()) or "none"
        raise UserError(
            f"There is no paper called {paper!r}.{suggest(paper, paths.papers())} Papers: {known}."
        )


def tables(paper: str) -> list[str]:
    """Names of the tables of `paper`, in alphabetical order."""
    check_paper(paper)
    return sorted(path.stem for path in (paths.CONFIGS / paper).glob("*.yaml"))


def recipes(paper: str) -> list[Recipe]:
    """All recipes of `paper`; exactly one of them must be the default."""
    found = [load_recipe(paper, table) for table in tables(paper)]
    defaults = [recipe.table for recipe in found if recipe.default]
    if len(defaults) != 1:
        raise UserError(
            f"Exactly one table of {paper} must say `default: true`; found {defaults or 'none'} "
            f"in {paths.CONFIGS / paper}."
        )
    return found


def load_recipe(paper: str, table: str | None = None) -> Recipe:
    """The recipe of `table`, or of the paper's default table; every mistake in it is a `UserError`."""
    names = tables(paper)
    if table is None:
        return next(recipe for recipe in recipes(paper) if recipe.default)
    if table not in names:
        raise UserError(
            f"{paper} has no table {table!r}.{suggest(table, names)} Tables: {', '.join(names) or 'none'}."
        )
    path = paths.CONFIGS / paper / f"{table}.yaml"
    try:
        return _recipe(paper, table, path, _read(path))
    except UserError as error:
        raise UserError(f"{path.relative_to(paths.ROOT)}: {error}") from None


def parse_condition(text: str) -> tuple[str, float]:
    """``"> 0.5"`` -> ``(">", 0.5)``."""
    match = re.fullmatch(r"\s*(>=|<=|>|<)\s*([-+.\deE]+)\s*", str(text))
    try:
        return match[1], float(match[2])
    except (TypeError, ValueError):
        raise UserError(
            f"holds_if: expected an operator ({' '.join(OPERATORS)}) and a number, found {text!r}."
        ) from None


def _pick(kind: str, name: str, entries: Mapping[str, Entry], recipe: Recipe) -> Entry:
    if name not in entries:
        raise UserError(
            f"{recipe.paper}/{recipe.table} has no {kind} {name!r}.{suggest(name, entries)} "
            f"It has: {', '.join(entries)}."
        )
    return entries[name]


def _read(path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The YAML mapping at `path`, laid over the recipe that it extends."""
    from omegaconf import OmegaConf  # its loader reads 1e-4 as a number and refuses a key given twice

    if path in below:
        raise UserError(f"`extends` goes round in a circle: {' -> '.join(p.stem for p in (*below, path))}.")
    try:
        raw = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # yaml, omegaconf and decoding errors have no common base
        raise UserError(f"not readable as YAML: {error}") from None
    if not isinstance(raw, dict):
        raise UserError("expected a mapping with rows, columns and profiles.")
    parent = raw.pop("extends", None)
    if parent is None:
        return raw
    base_path = path.with_name(f"{parent}.yaml")
    if not base_path.is_file():
        others = [other.stem for other in path.parent.glob("*.yaml")]
        raise UserError(f"extends: there is no table {parent!r}.{suggest(str(parent), others)}")
    base = _read(base_path, (*below, path))
    base.pop("default", None)
    return _over(base, raw)


def _over(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`top` over `base`: mappings merge, except rows and columns, which replace those of `base`."""
    merged = dict(base)
    for key, value in top.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict) and key not in ("rows", "columns")
        merged[key] = _over(base[key], value) if both else value
    return merged


def _recipe(paper: str, table: str, path: Path, raw: dict[str, Any]) -> Recipe:
    given = {item.name for item in fields(Recipe)} - {"paper", "table", "path"}
    _check_keys("the recipe", raw, given, needs={"title", "metric", "rows", "columns", "profiles"})
    raw = {**raw, **_table_part(raw)}
    raw["profiles"] = {
        name: _profile(name, value)
        for name, value in _mapping("profiles", raw["profiles"]).items()
        if value is not None  # one of the extended recipe that this one does not have
    }
    raw["claims"] = tuple(_claim(item) for item in raw.get("claims") or [])
    raw["figures"] = tuple(raw.get("figures") or ())
    raw["config"] = _mapping("config", raw.get("config"))
    raw["plots"] = _mapping("plots", raw.get("plots"))
    recipe = Recipe(paper=paper, table=table, path=path, **raw)
    if len({claim.id for claim in recipe.claims}) != len(recipe.claims):
        raise UserError("two claims have the same id.")
    for name in recipe.profiles:
        _check_claims(recipe.at(name), name)
    return recipe


REPLACEABLE = frozenset({"title", "about", "rows", "columns", "published", "tolerance"}) | frozenset(
    {"metric", "unit", "scale", "higher_is_better"}
)


def _table_part(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a recipe that a profile may replace, read into its types."""
    part = {key: raw[key] for key in REPLACEABLE & set(raw)}
    for axis in ("rows", "columns"):
        if axis in part:
            part[axis] = _entries(axis, part[axis])
    for key in ("tolerance", "scale"):
        if part.get(key) is not None:
            part[key] = _number(key, part[key])
    return part


def _entries(axis: str, raw: Any) -> dict[str, Entry]:
    entries = {}
    for name, value in _mapping(axis, raw).items():
        value = _mapping(f"{axis}.{name}", value)
        _check_keys(f"{axis}.{name}", value, {item.name for item in fields(Entry)} - {"id"})
        value["config"] = _mapping(f"{axis}.{name}.config", value.get("config"))
        value["label"] = str(value.get("label") or name)
        if value.get("value") is not None:
            value["value"] = _number(f"{axis}.{name}.value", value["value"])
        if value.get("published") is not None:
            value["published"] = str(value["published"])
        entries[name] = Entry(id=name, **value)
    if not entries:
        raise UserError(f"{axis}: at least one is needed.")
    return entries


def _profile(name: str, raw: Any) -> Profile:
    raw = _mapping(f"profiles.{name}", raw)
    own = {"seeds", "minutes", "memory_gb", "disk_gb", "config"}
    _check_keys(f"profiles.{name}", raw, own | REPLACEABLE, needs={"seeds"})
    seeds = raw["seeds"]
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise UserError(f"profiles.{name}.seeds: expected a list of whole numbers, found {seeds!r}.")
    if len(set(seeds)) != len(seeds):
        raise UserError(f"profiles.{name}.seeds: a seed is listed twice in {seeds}.")
    numbers = {
        key: _number(f"profiles.{name}.{key}", raw[key])
        for key in ("minutes", "memory_gb", "disk_gb")
        if raw.get(key) is not None
    }
    config = _mapping(f"profiles.{name}.config", raw.get("config"))
    return Profile(name=name, seeds=tuple(seeds), config=config, replaces=_table_part(raw), **numbers)


def _claim(raw: Any) -> Claim:
    name = raw.get("id", "?") if isinstance(raw, dict) else "?"
    where = f"claim {name}"
    raw = _mapping(where, raw)
    kinds = [kind for kind in ("difference", "ratio", "function") if kind in raw]
    own = {"id", "says", "source", "profiles", "metric", "holds_if", "unit", "interval", "level", "with"}
    _check_keys(
        where, raw, own | {"difference", "ratio", "function"}, needs={"id", "says", "source", "holds_if"}
    )
    if len(kinds) != 1:
        raise UserError(f"{where}: expected one of difference, ratio, function; found {kinds or 'none'}.")
    kind = kinds[0]
    made: dict[str, Any] = {"id": str(raw["id"]), "says": str(raw["says"]), "source": str(raw["source"])}
    made |= {"kind": kind, "holds_if": str(raw["holds_if"]), "arguments": _mapping(where, raw.get("with"))}
    made |= {key: raw[key] for key in ("metric", "unit", "interval", "level") if key in raw}
    if raw.get("profiles") is not None:
        made["profiles"] = tuple(raw["profiles"])
    if kind == "function":
        made["function"] = str(raw["function"])
    else:
        sides = _mapping(f"{where}: {kind}", raw[kind])
        _check_keys(f"{where}: {kind}", sides, {"left", "right"}, needs={"left", "right"})
        for side, value in sides.items():
            value = _mapping(f"{where}: {side}", value)
            _check_keys(f"{where}: {side}", value, {"row", "column", "metric"})
            made[side] = Selector(**{key: _ids(item) for key, item in value.items()})
    claim = Claim(**made)
    parse_condition(claim.holds_if)
    if claim.interval not in ("t", "bootstrap"):
        raise UserError(f"{where}: interval is t or bootstrap, found {claim.interval!r}.")
    if not isinstance(claim.level, float) or not 0 < claim.level < 1:
        raise UserError(f"{where}: level lies between 0 and 1, found {claim.level!r}.")
    return claim


def _check_claims(recipe: Recipe, profile: str) -> None:
    """Every row and column that a claim names exists at the profile where the claim is tested."""
    for claim in recipe.claims:
        for selector in (claim.left, claim.right):
            for kind in ("row", "column"):
                chosen = getattr(selector, kind, "*")
                for name in [chosen] if isinstance(chosen, str) else chosen:
                    try:
                        name == "*" or getattr(recipe, kind)(name)
                    except UserError as error:
                        raise UserError(f"claim {claim.id} at profile {profile}: {error}") from None


def _ids(value: Any) -> Any:
    return [str(item) for item in value] if isinstance(value, list) else None if value is None else str(value)


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where}: expected a number, found {value!r}.")
    return float(value)


def _mapping(where: str, value: Any) -> dict[str, Any]:
    """`value` as a dict with text keys; a key that YAML reads as something else has to be quoted."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected a mapping, found {value!r}.")
    for key in value:
        if isinstance(key, float | bool):
            raise UserError(
                f"{where}: YAML reads the key {key!r} as a {type(key).__name__}; put it in quotes."
            )
    return {str(key): item for key, item in value.items()}


def _check_keys(where: str, raw: Mapping[str, Any], allowed: set[str], needs: set[str] = frozenset()) -> None:
    for key in raw:
        if key not in allowed:
            raise UserError(
                f"{where}: unknown key {key!r}.{suggest(str(key), sorted(allowed))} "
                f"Allowed: {', '.join(sorted(allowed))}."
            )
    if missing := sorted(key for key in needs if raw.get(key) is None):
        raise UserError(f"{where}: missing {', '.join(missing)}.")
