"""Directories that accept no new replicas: the values of the setting, and its effect (KIP-1066, K25)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from immutables import Map

from fenceline.config.cordoned import CORDONED, cordoned_dirs
from fenceline.config.node import NodeConfig
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.metadata.image import UNASSIGNED_DIRECTORY, ConfigResource, ConfigResourceType
from fenceline.node.storage.directory_cordons import DirectoryCordons
from tests.node.desk import TOPIC, Desk, run_story, turns
from tests.node.test_several_directories import lead, mine, takes_all

DIRS = (Path("/data"), Path("/data2"))


def test_parsing_of_cordoned_log_dirs() -> None:
    assert cordoned_dirs("", DIRS) == cordoned_dirs(None, DIRS) == ()
    assert cordoned_dirs("*", DIRS) == DIRS
    assert cordoned_dirs("/data2, /data/", DIRS) == DIRS
    for wrong, said in (("*,/data", "must not contain other values"), ("/data,/x,/y", "Missing entries : /x, /y")):
        with pytest.raises(PeerError, match=said) as refused:
            cordoned_dirs(wrong, DIRS)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    with pytest.raises(OperatorError, match="Missing entries : /x"):
        NodeConfig.load(None, {"log.dirs": "/data", CORDONED: "/x"}, {})


def cordon(desk: Desk, cordons: DirectoryCordons, text: str, version: int = 30) -> None:
    configs = desk.image.configs.set(ConfigResource(ConfigResourceType.BROKER, "1"), Map({CORDONED: text}))
    desk.image = replace(desk.image, configs=configs, features=Map({"metadata.version": version}))
    cordons.apply()


def test_new_replicas_avoid_cordoned_directories() -> None:
    async def story(desk: Desk) -> None:
        desk.controller.answer = takes_all
        cordons = desk.plane.cordons
        cordon(desk, cordons, "/data", version=29)
        assert desk.lifecycle.cordoned == [], "metadata version 29 does not support it"
        cordon(desk, cordons, "/data")
        assert desk.lifecycle.cordoned == [(mine(desk, 0),)]
        for index in range(3):
            lead(desk, index, UNASSIGNED_DIRECTORY)
            desk.append(index=index)
        await turns()
        assert {desk.replica(index).log.directory for index in range(3)} == {f"/data2/{TOPIC}-{n}" for n in range(3)}
        cordon(desk, cordons, "/nowhere")
        assert desk.log_dirs.cordoned == {"/data"}, "an invalid value changes nothing"
        cordon(desk, cordons, "*")
        assert desk.lifecycle.cordoned[-1] == (mine(desk, 0), mine(desk, 1))
        lead(desk, 3, UNASSIGNED_DIRECTORY)
        assert desk.replica(3).log.directory == f"/data/{TOPIC}-3", "with every directory cordoned, one is used anyway"
        cordon(desk, cordons, "")
        assert desk.lifecycle.cordoned[-1] == ()

    run_story(story, partitions=4, directories=2, settings={"log.dirs": "/data,/data2"})
