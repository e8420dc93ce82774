"""The store in which the ranks of a job find each other."""

from __future__ import annotations

import psutil
import pytest

from bexplore.engine.protocol.messages import OpenStore
from bexplore.engine.worker.context import Place
from bexplore.engine.worker.ranks import Membership


@pytest.mark.promise("another host connects to the store of torch, which knows no key", "on one host it is loopback's")
@pytest.mark.parametrize(("is_one_host", "address"), [(True, "127.0.0.1"), (False, "0.0.0.0")])
def test_the_store_of_ranks_on_one_host_listens_on_loopback_alone(is_one_host, address):
    membership = Membership(Place(0, 0, 1))
    port = membership.open_store(OpenStore(is_one_host=is_one_host, timeout_s=10.0))
    own = [one for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN]

    assert {one.laddr.ip for one in own if one.laddr.port == port} == {address}
