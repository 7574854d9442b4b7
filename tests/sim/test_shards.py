"""Runs over a Cluster with sharded channels, and the parts of their model."""

from collections import Counter
from itertools import pairwise
from typing import cast

import pytest
from redis.crc import key_slot

from relock._keys import lock_keys
from relock._runtime.masters.cluster import Cluster
from relock._runtime.net.slots import SLOTS
from relock.testing._conditions import Conditions
from relock.testing._world import World
from sim.nodes import Nodes
from sim.shards import DOORS, FIRST, MASTERS, NAMES, SLOW_FIRST, ClusterRun, run_of
from sim.simulation import Simulation, ViolationError

SEEDS = range(FIRST, FIRST + 16)
SLOW_SEEDS = range(SLOW_FIRST, SLOW_FIRST + 16)


@pytest.mark.timeout(600)  # no run waits, so this takes long only on a busy machine
@pytest.mark.parametrize(
    ("seeds", "kinds"), [(SEEDS, {"move", "fail", "part", "late"}), (SLOW_SEEDS, {"move", "slow"})], ids=["", "slowly"]
)
def test_no_seed_finds_a_violation_over_a_cluster(seeds: range, kinds: set[str]) -> None:
    bad, faults = [], Counter[str]()
    for seed in seeds:
        run = run_of(seed)
        try:
            run.run()
        except ViolationError as error:
            bad.append(str(error).partition("\n")[0])
        faults.update(run.faults)
        assert run.grants
    assert bad == []
    assert set(faults) == kinds


def test_clients_of_these_runs_listen_on_sharded_channels_and_locks_are_handed_over() -> None:
    run = ClusterRun(FIRST)
    run.run()
    clusters = [cast("Cluster", client._session.masters[0]) for client in run._clients.values()]
    assert all(cluster.is_sharded for cluster in clusters)
    assert any("~" in what for _, _, what in run.world.log if what.startswith("has ")), "a releaser names the hold so"


@pytest.mark.parametrize("seed", [FIRST + 1, SLOW_FIRST + 2])
def test_a_seed_plays_the_same_run_again(seed: int) -> None:
    first, second = (ClusterRun(seed).run().world.timeline() for _ in range(2))
    assert first == second


def test_threads_and_tasks_hand_locks_over_while_slots_move_slowly() -> None:
    kinds = [bool(run._doors) for run in map(ClusterRun, SLOW_SEEDS) for _ in run._clients]
    runs = [ClusterRun(seed).run() for seed in SLOW_SEEDS[:4]]
    assert set(kinds) == {True, False}
    assert {kind for run in runs for kind in run.doors.values()} == set(DOORS)
    log = [what for run in runs for _, _, what in run.world.log]
    assert any("~" in what for what in log if what.startswith("has ")), "a releaser names the hold so"


def test_other_seeds_play_what_they_always_played() -> None:
    assert isinstance(run_of(FIRST - 1), Simulation)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes(World(0), MASTERS, Conditions())


def test_the_locks_are_on_all_nodes(nodes: Nodes) -> None:
    assert {nodes.serving_node(name).number for name in NAMES} == set(range(MASTERS))


def test_a_slot_moves_with_its_keys_and_a_late_node_keeps_a_copy_until_it_hears(nodes: Nodes) -> None:
    key, old = lock_keys("lock", "a").lock, nodes.serving_node("a")
    new = nodes.servers[(old.number + 1) % MASTERS]
    old.master.read("HSET", key, b"one", b"1")
    assert nodes.move_late("a", new.number, 0.3)
    assert not nodes.move("b", new.number), "one thing at a time"
    assert (old.master.keys(), new.master.keys()) == ([key], [key])
    assert old.master.slot_of([key]) == new.master.slot_of([key]) == key_slot(b"a")
    nodes._world.run(1.0)
    assert (old.master.keys(), nodes.are_all_well()) == ([], True)
    assert old.refusal_of(key_slot(b"a"), ()).endswith(f":{7000 + new.number}")


def test_a_slot_moves_key_by_key_and_only_then_to_the_new_node(nodes: Nodes) -> None:
    keys, old, slot = lock_keys("lock", "a"), nodes.serving_node("a"), key_slot(b"a")
    new = nodes.servers[(old.number + 1) % MASTERS]
    old.master.read("HSET", keys.lock, b"one", b"1")
    old.master.read("SET", keys.token, b"1")
    assert nodes.begin_to_move("a", new.number)
    assert not nodes.move("a", new.number), "it is moving"
    nodes.move_key("a")
    assert len(old.master.keys()) == len(new.master.keys()) == 1
    assert nodes.have_hold("a", keys, b"one"), "on one of the two"
    nodes.move_keys("a")
    assert (old.master.keys(), len(new.master.keys())) == ([], 2)
    assert (nodes.serving_node("a"), old.refusal_of(slot, [keys.lock]).split()[0]) == (old, "ASK")
    nodes.finish_moving("a")
    assert (nodes.serving_node("a"), old.refusal_of(slot, [keys.lock]).split()[0]) == (new, "MOVED")
    assert new.refusal_of(slot, [keys.lock, keys.queue]) == "", "a missing key is nothing special any more"


def test_a_standby_takes_over_with_all_data(nodes: Nodes) -> None:
    key, old = lock_keys("lock", "a").lock, nodes.serving_node("a")
    old.master.read("HSET", key, b"one", b"1")
    assert nodes.fail(old.number, 0.2, 0.2)
    nodes._world.run(0.3)
    new = nodes.serving_node("a")
    assert (new.number, new.master.keys(), old.is_up) == (old.number + MASTERS, [key], False)
    nodes._world.run(1.0)
    assert nodes.are_all_well()
    assert old.master.keys() == []


def test_a_node_names_all_ranges_of_slots(nodes: Nodes) -> None:
    nodes.move("a", (nodes.serving_node("a").number + 1) % MASTERS)
    ranges = nodes.servers[-1]._look(b"CLUSTER", [b"CLUSTER", b"SLOTS"])
    assert (ranges[0][0], ranges[-1][1]) == (0, SLOTS - 1)
    assert all(one[1] + 1 == other[0] for one, other in pairwise(ranges))
    assert len(ranges) == MASTERS + 2
