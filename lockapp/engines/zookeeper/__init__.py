"""The ZooKeeper engine: ephemeral sequential nodes of one session per process."""

from lockapp.engines.zookeeper.engine import ZooKeeperEngine

__all__ = ["ZooKeeperEngine"]
