"""Extending a hold while not every master can be asked, though all masters are up."""

import pytest

from contract.rigs.rig import Rig, key_of


@pytest.mark.several
def test_a_master_without_a_free_connection_is_asked_again_where_a_quorum_lacks_it(rig: Rig, name: str) -> None:
    """Masters may have forgotten the hold, or may have granted another client's attempt when this hold was granted."""
    client = rig.client()
    rig.warm_up(client)
    lock = client.lock(name)
    rig.take_everywhere(lock, 1)
    for master in range(rig.quorum - 1):
        rig.ask(master, "DEL", key_of(name))
    client._session.masters[-1].pool.drop_idle()
    assert lock.extend() > 0.0
    lock.release()
    rig.until_free(name, "its release")
