"""Choices by the seed: it decides which fault strikes which master, and every kind of fault gets its turn."""

import random
from pathlib import Path
from typing import cast

import pytest
from attrs import evolve

from chaos.campaign import Campaign
from chaos.catalogue import KINDS
from chaos.faults import LEASES_AHEAD_MAX
from chaos.field import Blow, Field
from chaos.nemesis import SHAPES, Episode, Waves, shaped
from chaos.records import Operation
from chaos.verdict import Calls

NO_FIELD = cast(Field, None)  # choosing faults needs no field


def waves(episode: Episode, count: int = 300) -> list[list[Blow]]:
    chosen = Waves(episode, NO_FIELD)
    return [chosen.choose()[1] for _ in range(count)]


def named(blows: list[list[Blow]]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(blow.kind, blow.reach, blow.masters) for wave in blows for blow in wave]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masters", [1, 5])
def test_the_same_seed_makes_the_same_choices(shape: str, masters: int, seed: int) -> None:
    episode = shaped(shape, masters, f"{seed}", 1.0)
    assert named(waves(episode)) == named(waves(episode))
    other = shaped(shape, masters, f"{seed} and another", 1.0)
    assert named(waves(episode)) != named(waves(other))


def test_every_kind_of_fault_comes_alone_and_together_with_others() -> None:
    chosen = waves(shaped("moving", 5, "a seed", 1.0), 3000)
    alone = {wave[0].kind for wave in chosen if len(wave) == 1}
    mixed = {blow.kind for wave in chosen if len(wave) > 1 for blow in wave}
    assert alone == mixed == set(KINDS)


def test_a_clock_is_set_while_nothing_else_strikes_a_master() -> None:
    for wave in waves(shaped("crowded", 5, "a seed", 1.0), 2000):
        if any(KINDS[blow.kind].lonely for blow in wave):
            assert len([blow for blow in wave if blow.masters]) == 1


def test_after_a_clock_was_set_nothing_strikes_before_it_is_as_far_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters that forget their tokens before their clock shows that time again may give smaller ones."""
    slept: list[float] = []
    monkeypatch.setattr("chaos.nemesis.time.sleep", slept.append)
    episode = shaped("busy", 1, "a seed", 1.0)
    some = [KINDS["clock ahead and back"], KINDS["waiter killed"]]
    Waves(episode, NO_FIELD)._rest(some)
    assert sum(slept) >= LEASES_AHEAD_MAX * episode.plan.ttl


def test_without_proxies_the_network_has_no_faults() -> None:
    kinds = {blow.kind for wave in waves(shaped("busy", 1, "a seed", 1.0), 2000) for blow in wave}
    assert kinds == {name for name, kind in KINDS.items() if not kind.is_network and not kind.needs_replicas}


def test_without_a_guard_nothing_strikes_that_makes_masters_forget_holds() -> None:
    kinds = {KINDS[blow.kind] for wave in waves(shaped("unguarded", 5, "a seed", 1.0), 2000) for blow in wave}
    assert [kind.name for kind in kinds if kind.forgets and not kind.keeps] == []
    assert {kind.name for kind in kinds if kind.needs_replicas} == {
        "FAILOVER",
        "REPLICAOF by hand",
        "old master left alone",
    }


@pytest.mark.parametrize("shape", ["moving", "unguarded"])
@pytest.mark.parametrize("masters", [1, 5])
def test_the_faults_that_only_a_shape_has_come_first_and_once(shape: str, masters: int, seed: int) -> None:
    episode = shaped(shape, masters, f"{seed}", 1.0)
    first = waves(episode, len(episode.first))
    assert sorted(blow.kind for wave in first for blow in wave) == sorted(episode.first)
    assert {name for name, kind in KINDS.items() if kind.is_borne(episode.plan) and kind.needs_replicas} <= {
        *episode.first
    }


def test_without_loops_none_is_struck() -> None:
    episode = shaped("crowded", 1, "a seed", 1.0, has_loops=False)
    assert not any(KINDS[blow.kind].needs_loops for wave in waves(episode, 2000) for blow in wave)


def test_only_the_named_kinds_come() -> None:
    episode = shaped("moving", 1, "a seed", 1.0, ["FLUSHALL"])
    assert {blow.kind for wave in waves(episode) for blow in wave} == {"FLUSHALL"}


def test_only_a_minority_of_the_clocks_is_set() -> None:
    for kind, reach, masters in named(waves(shaped("crowded", 5, "a seed", 1.0), 2000)):
        if KINDS[kind].minority:
            assert (reach, len(masters)) == ("minority", 1)


def test_each_number_of_masters_shape_and_server_gets_its_turn() -> None:
    campaign = Campaign("a seed", [1, 5], ["crowded", "busy"], ["one", "another"], [], 1.0, Path())
    turns = [campaign.choose(number) for number in range(1, 10)]
    assert turns[:5] == [
        (1, "crowded", "one"),
        (5, "crowded", "one"),
        (1, "busy", "one"),
        (5, "busy", "one"),
        (1, "crowded", "another"),
    ]
    assert len(set(turns)) == 8
    assert turns[8] == turns[0]


def test_the_calls_of_a_moment_are_found(seed: int) -> None:
    dice = random.Random(seed)
    one = Operation(0, "p1.t0", "a", "acquire", 0.0)
    begins = [dice.uniform(0.0, 100.0) for _ in range(200)]
    calls = [evolve(one, number=i, called=at, returned=at + dice.expovariate(0.3)) for i, at in enumerate(begins)]
    for moment in (*(dice.uniform(0.0, 110.0) for _ in range(50)), calls[0].called, calls[0].returned):
        found = {call.number for call in Calls(calls).under_way(moment)}
        assert found == {call.number for call in calls if call.called < moment <= call.returned}
