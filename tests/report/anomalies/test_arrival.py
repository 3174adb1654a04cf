# SPDX-License-Identifier: GPL-2.0-only
"""Time between the NIC and the receive softirq: an interrupt delivery delay, a sleeping core, or a late poll."""

import pytest
from machinery.made_up.scene import Scene
from machinery.made_up.tables import TID, context, message, state
from nsight_report.anomalies import Host, Recording, Selection, Slice, find
from nsight_report.attribution import attribute

SLOWEST = Selection(slow=Slice.parse("4500ns-"), granularity_ns=50)
#: The application core: the thread is woken 100 ns after the hand-off and runs as usual.
DEVICE, TICK = "asm_common_interrupt", "asm_sysvec_apic_timer_interrupt"


def causes(core0: list[tuple], host: Host | None = None, wait: int = 5000, power: int | None = None,
           left: tuple[int, int] | None = None, **over):  # fmt: skip
    """Causes of one message, which its softirq saw ``wait`` ns after the NIC, after 40 usual ones; ``core0``: rows of core 0, ``left``: when its
    ksoftirqd was ready to run."""
    scene = Scene()
    t = scene.quiet(40)
    # Usual messages: arrival 400 ns after the NIC, hand-off at 500, read at 1000.
    scene.messages.append(message(40, t, t + wait + 100, t + wait + 600, **{"nic_source": "hw", **over}))
    scene.cores(
        t,
        core0,
        [
            (0, wait + 200, "idle", "idle", 0, "swapper"),
            (wait + 200, wait + 1100, "syscall", "read", TID, "server"),
        ],
    )
    scene.threads(t, [(0, wait + 200, "sleeping"), (wait + 200, wait + 1100, "running")])
    if left is not None:
        thread = {"tid": 22, "pid": 22, "comm": "ksoftirqd/0", "cpu": 0}
        scene.states.append({**state(t + left[0], t + left[1], "runnable"), **thread})
    if power is not None:
        scene.calls.append({**scene.calls[-1], "kind": "power", "symbol": "", "cpu": 0, "start_ns": t + power,
                            "dur_ns": 0, "self_ns": 0, "tid": 0})  # fmt: skip
    compared, found, *_ = find(Recording(*scene.tables(), None, host), SLOWEST)
    kept, _, table, _ = attribute(found, compared, SLOWEST)
    return {r["cause"]: r["total_deviation_ns"] for r in table.to_pylist()}, kept.to_pylist()


def core(*before: tuple, irq: str = DEVICE, irq_at: int = 4600) -> list[tuple]:
    """Core 0: ``before``, then the interrupt, and directly after it the softirq (4900 to 5300); both name swapper."""
    return [
        *before,
        (irq_at, 4900, "hardirq", irq, 0, "swapper"),
        (4900, 5300, "softirq", "NET_RX", 0, "swapper"),
    ]


IDLE = (0, 4600, "idle", "idle", 0, "swapper")
HOG = (0, 4600, "thread", "hog", 50, "hog")


def test_interrupt_that_comes_late_is_a_delay_of_the_nic():
    found, rows = causes(core(IDLE))
    # 4600 ns before the interrupt: the whole deviation of the message (5600 ns; others take 1000 ns).
    assert found["NIC delay (R)"] == 4600
    assert [r["subject"] for r in rows if r["category"] == "NIC delay"] == ["interrupt delivery delay"]


def test_what_runs_before_the_interrupt_is_not_blamed():
    # The interrupt would have preempted a thread, so the running thread did not keep the message waiting.
    found, _ = causes(core(HOG))
    assert found["NIC delay (R)"] == 4600
    assert "hog (R)" not in found


def test_coalescing_that_fits_the_wait_is_named():
    found, _ = causes(core(IDLE), Host(coalesce_ns=5000))
    assert found["Interrupt coalescing (R)"] == 4600


@pytest.mark.parametrize("coalesce_ns", [200, 50_000])
def test_coalescing_that_does_not_fit_the_wait_is_not_named(coalesce_ns: int):
    found, _ = causes(core(IDLE), Host(coalesce_ns=coalesce_ns))
    assert found["NIC delay (R)"] == 4600


def test_adaptive_coalescing_fits_any_wait():
    assert causes(core(IDLE), Host(coalesce_ns=-1))[0]["Interrupt coalescing (R)"] == 4600


def test_poll_behind_a_timer_was_put_off():
    # napi_defer_hard_irqs: the NIC's interrupt stays off, and a timer polls for packets.
    assert causes(core(HOG, irq=TICK))[0]["Interrupt coalescing (R)"] == 4600


@pytest.mark.parametrize("source", ["hw", "peer_xmit"])
def test_poll_behind_a_timer_was_not_put_off_while_ksoftirqd_was_to_do_it(source: str):
    # The hog runs beside a ready ksoftirqd, and the exit of the tick polls.
    found, _ = causes(core(HOG, irq=TICK), left=(-100, 9000), nic_source=source)
    assert found["hog (R)"] == 4600
    assert not {"Interrupt coalescing (R)", "NIC delay (R)"} & set(found)


@pytest.mark.parametrize("left", [(-900, 4000), (4950, 6000)])
def test_poll_behind_a_timer_was_put_off_if_ksoftirqd_had_nothing_to_do(left: tuple[int, int]):
    # The softirq begins at 4900.
    assert causes(core(HOG, irq=TICK), left=left)[0]["Interrupt coalescing (R)"] == 4600


def test_device_does_not_announce_a_packet_that_another_core_steered_here():
    found, _ = causes(core(HOG), Host(coalesce_ns=5000), nic_source="peer_xmit")
    assert found["hog (R)"] == 4600
    assert not {"Interrupt coalescing (R)", "NIC delay (R)"} & set(found)


def test_steered_packet_that_waits_for_its_inter_processor_interrupt_is_late_and_not_coalesced():
    announced = core(IDLE, irq="call_function_single")
    found, _ = causes(announced, Host(coalesce_ns=5000), nic_source="peer_xmit")
    assert found["NIC delay (R)"] == 4600
    assert "Interrupt coalescing (R)" not in found


def test_slow_c_state_is_a_core_wake_up():
    assert causes(core(IDLE), Host(exit_ns=(1000, 4000)))[0]["C-state exit latency (R)"] == 4600


def test_c_state_that_is_left_fast_is_not_blamed():
    # 600 ns do not explain 4600. Neither does a C-state of a core that was not idle.
    assert causes(core(IDLE), Host(exit_ns=(600,)))[0]["NIC delay (R)"] == 4600
    assert causes(core(HOG), Host(exit_ns=(4000,)))[0]["NIC delay (R)"] == 4600


def test_power_event_in_the_wait_is_a_core_wake_up():
    assert causes(core(IDLE), power=4500)[0]["C-state exit latency (R)"] == 4600
    assert causes(core(IDLE), power=-500)[0]["NIC delay (R)"] == 4600


def test_late_poll_blames_what_ran_after_the_interrupt():
    # The interrupt is handled from 500 to 800. Then the hog runs until the softirq of ksoftirqd at 4900.
    found, _ = causes([
        (0, 500, "idle", "idle", 0, "swapper"), (500, 800, "hardirq", DEVICE, 0, "swapper"),
        (800, 4900, "thread", "hog", 50, "hog"), (4900, 5300, "softirq", "NET_RX", 7, "ksoftirqd/0"),
    ])  # fmt: skip
    assert found["hog (R)"] == 4100
    assert found["NIC delay (R)"] == 500


def test_tick_between_interrupt_and_poll_is_not_the_interrupt():
    found, _ = causes([
        (0, 500, "idle", "idle", 0, "swapper"), (500, 800, "hardirq", DEVICE, 0, "swapper"),
        (800, 4700, "thread", "hog", 50, "hog"), (4700, 4900, "hardirq", TICK, 50, "hog"),
        (4900, 5300, "softirq", "NET_RX", 50, "hog"),
    ])  # fmt: skip
    assert found["hog (R)"] == 3900
    assert "Interrupt coalescing (R)" not in found


def test_while_others_are_polled_the_missing_interrupt_tells_nothing():
    found, _ = causes(
        core(
            (0, 500, "idle", "idle", 0, "swapper"),
            (500, 3000, "softirq", "NET_RX", 0, "swapper"),
            (3000, 4600, "thread", "hog", 50, "hog"),
        )
    )
    # The poll masks the NIC's interrupt, so what ran from 500 on may have delayed the message.
    assert found["NIC delay (R)"] == 500
    assert found["Receive processing (R)"] >= 2000  # less the usual time of the message's softirq
    assert found["hog (R)"] == 1600


def test_a_poll_for_others_does_not_hide_that_a_timer_put_the_poll_off():
    found, _ = causes(
        core(
            (0, 500, "idle", "idle", 0, "swapper"),
            (500, 900, "softirq", "NET_RX", 0, "swapper"),
            (900, 4600, "thread", "hog", 50, "hog"),
            irq=TICK,
        )
    )
    # No interrupt was due before the timer's, even if other packets were polled meanwhile.
    assert found["Interrupt coalescing (R)"] == 4600
    assert "hog (R)" not in found


def test_without_an_interrupt_what_ran_is_blamed_as_before():
    # A poll in a thread (threaded NAPI) behind a hog.
    found, _ = causes(
        [(0, 4900, "thread", "hog", 50, "hog"), (4900, 5300, "softirq", "NET_RX", 7, "napi/eth0-1")]
    )
    # The whole deviation of the message: it took 5600 ns, others take 1000.
    assert found == {"hog (R)": 4600}


def test_message_that_the_nic_has_is_not_held_up_by_its_core():
    scene = Scene()
    for i in range(41):
        t = i * 20_000
        done = t + (9000 if i == 40 else 1500)
        scene.messages.append(message(
            i, t, t + 500, t + 1000, direction="tx", first_ns=t, last_ns=done, latency_ns=done - t, nic_ns=None, arrival_ns=None,
            arrival_last_ns=None, handoff_ns=None, call_ns=t, app_ns=t + 900, driver_ns=t + 1000, completion_ns=done,
        ))  # fmt: skip
        scene.contexts += [
            context(0, t, t + 20_000, "thread", "hog", 50, "hog"),
            context(1, t, t + 1000, "syscall", "sendto", TID, "server"),
            context(1, t + 1000, t + 20_000, "idle", "idle", 0, "swapper"),
        ]
        scene.threads(t, [(0, 1000, "running"), (1000, 20_000, "sleeping")])
    options = Selection(slow=Slice.parse("4500ns-"), granularity_ns=50, direction="tx")
    compared, found, *_ = find(Recording(*scene.tables()), options)
    _, _, table, _ = attribute(found, compared, options)
    # From the driver to the completion timestamp: usually 500 ns, here 8000.
    assert {r["cause"]: r["total_deviation_ns"] for r in table.to_pylist()} == {
        "NIC transmit delay (R)": 7500
    }
