// SPDX-License-Identifier: GPL-2.0-only
//! Short executions and the exact packets that they must give.

#![allow(clippy::single_range_in_vec_init)] // options take several windows

use pt_encoder::encoder::{AUX_FLAG_OVERWRITE, AUX_FLAG_TRUNCATED};
use pt_encoder::options::CBR;
use pt_encoder::{encode, Buffer, Encoded, Options, Packet};
use pt_events::{Event, Kind};

const K: u64 = 0xffff_ffff_8100_0000;
const CR3: u64 = 0x5000;

fn at(tsc: u64, kind: Kind) -> Event {
    Event { tsc, kind }
}

fn ret(tsc: u64, from: u64, to: u64) -> Event {
    at(tsc, Kind::Ret { from, to })
}

fn cond(tsc: u64, from: u64, taken: bool) -> Event {
    at(tsc, Kind::Cond { from, to: from + 2, taken })
}

fn enable(ip: u64) -> Event {
    at(100, Kind::Enable { ip, cr3: CR3 })
}

/// Only TSC packets: no cycle counts between the packets that a test checks.
fn plain() -> Options {
    Options { cyc: false, ..Options::default() }
}

fn psb_plus(tsc: u64, fup: Option<u64>) -> Vec<Packet> {
    let mut packets =
        vec![Packet::Psb, Packet::Tsc(tsc), Packet::Cbr(CBR), Packet::ModeExec64, Packet::Pip { cr3: CR3 }];
    packets.extend(fup.map(Packet::Fup));
    packets.push(Packet::Psbend);
    packets
}

#[track_caller]
fn check(encoded: &Encoded, parts: &[&[Packet]]) {
    let mut buffer = Buffer::default();
    for &packet in parts.iter().copied().flatten() {
        buffer.push(packet);
    }
    assert_eq!(encoded.bytes, buffer.bytes);
}

#[test]
fn waiting_bits_leave_before_an_address() {
    let events =
        [enable(0x1000), cond(101, 0x1002, true), cond(102, 0x1008, false), ret(103, 0x100c, 0x2000)];
    let expected = [Packet::TipPge(0x1000), Packet::Tnt { bits: 0b10, n: 2 }, Packet::Tip(0x2000)];
    check(&encode(0, &events, &plain()), &[&psb_plus(100, None), &expected]);
}

#[test]
fn a_full_tnt_leaves_at_once_and_direct_branches_make_no_packet() {
    let mut events = vec![enable(0x1000)];
    events.extend((0..7).map(|n| cond(101 + n, 0x1002, true)));
    events.push(at(120, Kind::Jump { from: 0x1010, to: 0x1000 }));
    events.push(at(121, Kind::Disable { ip: 0x1000 }));
    let expected = [
        Packet::TipPge(0x1000),
        Packet::Tnt { bits: 0b11_1111, n: 6 },
        Packet::Tnt { bits: 1, n: 1 },
        Packet::Fup(0x1000),
        Packet::TipPgd(None),
    ];
    check(&encode(0, &events, &plain()), &[&psb_plus(100, None), &expected]);
}

#[test]
fn an_interrupt_is_where_it_left_and_where_it_came_to() {
    let events = [enable(0x1000), at(105, Kind::Async { from: 0x1004, to: K, vector: 236 })];
    let expected = [Packet::TipPge(0x1000), Packet::Fup(0x1004), Packet::Tip(K)];
    check(&encode(0, &events, &plain()), &[&psb_plus(100, None), &expected]);
}

#[test]
fn cycles_are_counted_to_the_packet_that_follows() {
    let events = [enable(0x1000), cond(105, 0x1002, true), ret(112, 0x100c, 0x2000)];
    let options = Options::default();
    let encoded = encode(0, &events, &options);
    let mut start = psb_plus(100, None);
    start.insert(1, Packet::Cyc(100)); // directly before TSC
                                       // the bit waits for the return and leaves with it: both at 112
    let expected =
        [Packet::TipPge(0x1000), Packet::Cyc(12), Packet::Tnt { bits: 1, n: 1 }, Packet::Tip(0x2000)];
    check(&encoded, &[&start, &expected]);
}

#[test]
fn bits_from_before_another_cpus_turn_do_not_wait_for_its_end() {
    let events = [
        enable(0x1000),
        cond(105, 0x1002, true),
        at(106, Kind::Pause),
        at(5000, Kind::Resume),
        cond(5001, 0x1008, true),
        ret(5002, 0x100c, 0x2000),
    ];
    let mut expected = vec![Packet::TipPge(0x1000), Packet::Tnt { bits: 1, n: 1 }];
    expected.extend([Packet::Tsc(5000), Packet::Cbr(CBR)]);
    expected.extend([Packet::Tnt { bits: 1, n: 1 }, Packet::Tip(0x2000)]);
    check(&encode(0, &events, &plain()), &[&psb_plus(100, None), &expected]);
}

#[test]
fn mtc_packets_mark_the_crystal_clock() {
    // 40 TSC ticks per tick of the crystal, an MTC every 8 ticks: at 320, 640, ...
    let options = Options { mtc: true, ..plain() };
    let events = [enable(0x1000), ret(700, 0x100c, 0x2000)];
    let tma = Packet::Tma { ctc: 2, fast_counter: 20 }; // 100 = 2 * 40 + 20
    let mut start = psb_plus(100, None);
    start.insert(2, tma);
    let expected = [Packet::TipPge(0x1000), Packet::Mtc(1), Packet::Mtc(2), Packet::Tip(0x2000)];
    check(&encode(0, &events, &options), &[&start, &expected]);
}

#[test]
fn compressed_returns_are_taken_bits_until_a_psb_forgets_the_calls() {
    let call = |tsc, from, to| at(tsc, Kind::Call { from, to, next: from + 5 });
    let events = [
        enable(0x1000),
        call(101, 0x1000, 0x2000),
        ret(102, 0x2000, 0x1005),
        call(103, 0x1005, 0x2000),
        ret(104, 0x2000, 0x3000), // not to the address after the call
    ];
    let options = Options { noretcomp: false, ..plain() };
    let expected = [Packet::TipPge(0x1000), Packet::Tnt { bits: 1, n: 1 }, Packet::Tip(0x3000)];
    check(&encode(0, &events, &options), &[&psb_plus(100, None), &expected]);
    let often = Options { psb_bytes: Some(64), ..options };
    let many: Vec<_> = std::iter::once(events[0])
        .chain((0..20).map(|n| ret(101 + n, 0x2000, K + n * 0x100_0000)))
        .chain([call(200, 0x4000, 0x5000), ret(201, 0x5000, 0x4005)])
        .collect();
    assert!(encode(0, &many, &often).packets["PSB"] > 1);
}

#[test]
fn user_code_alone_is_entered_and_left_without_telling_the_kernels_address() {
    let events = [
        enable(0x1000),
        at(101, Kind::Far { from: 0x1002, to: K }),
        ret(102, K + 8, K + 0x100),
        at(103, Kind::Far { from: K + 0x110, to: 0x1004 }),
        at(104, Kind::Async { from: 0x1006, to: K, vector: 14 }),
    ];
    let options = Options { user_only: true, ..plain() };
    let mut start = psb_plus(100, None);
    start.remove(4); // PIP belongs to the kernel
    let expected = [
        Packet::TipPge(0x1000),
        Packet::TipPgd(None),
        Packet::TipPge(0x1004),
        Packet::Fup(0x1006),
        Packet::TipPgd(None),
    ];
    check(&encode(0, &events, &options), &[&start, &expected]);
}

#[test]
fn a_filter_is_left_by_branches_and_in_straight_line() {
    let filter = vec![0x1000..0x1010, 0x2000..0x2010];
    let options = Options { filter, ..plain() };
    let events = [
        enable(0x1000),
        ret(101, 0x1004, 0x1800), // a branch out
        ret(102, 0x1804, 0x1ff0), // outside
        ret(103, 0x2004, 0x2008), // came in at 0x2000 in a straight line
        ret(104, 0x2014, 0x1000), // left at 0x2010 in a straight line, and a branch in
    ];
    let expected = [
        Packet::TipPge(0x1000),
        Packet::TipPgd(Some(0x1800)),
        Packet::TipPge(0x2000),
        Packet::Tip(0x2008),
        Packet::TipPgd(Some(0x2010)),
        Packet::TipPge(0x1000),
    ];
    check(&encode(0, &events, &options), &[&psb_plus(100, None), &expected]);
}

#[test]
fn tracestop_is_for_good() {
    let tracestop = vec![0x3000..0x3100];
    let options = Options { tracestop, ..plain() };
    let events = [enable(0x1000), ret(101, 0x1004, 0x3000), ret(102, 0x3004, 0x1000)];
    let expected =
        [Packet::TipPge(0x1000), Packet::Tip(0x3000), Packet::TipPgd(Some(0x3000)), Packet::TraceStop];
    check(&encode(0, &events, &options), &[&psb_plus(100, None), &expected]);
}

#[test]
fn an_overflow_loses_waiting_bits_and_says_where_it_ends() {
    let overflow = vec![110..115];
    let options = Options { overflow, ..plain() };
    let events = [
        enable(0x1000),
        cond(105, 0x1002, true), // waits, and is lost with the rest
        ret(111, 0x1008, 0x2000),
        ret(116, 0x2008, 0x3000), // the first branch after it
        ret(120, 0x3008, 0x4000),
    ];
    let encoded = encode(2, &events, &options);
    let resume = [Packet::TipPge(0x1000), Packet::Ovf, Packet::Fup(0x3000)];
    check(&encoded, &[&psb_plus(100, None), &resume, &psb_plus(116, Some(0x3000)), &[Packet::Tip(0x4000)]]);
    let lost = &encoded.injected[0];
    assert_eq!((lost.kind, lost.cpu, lost.tsc_start, lost.tsc_end), ("overflow", 2, 105, 116));
}

#[test]
fn a_full_aux_buffer_ends_its_chunk_and_begins_anew() {
    let truncate = vec![110..115];
    let options = Options { truncate, ..plain() };
    let events =
        [enable(0x1000), ret(105, 0x1008, 0x2000), ret(111, 0x2008, 0x3000), ret(116, 0x3008, 0x4000)];
    let encoded = encode(0, &events, &options);
    let before = [Packet::TipPge(0x1000), Packet::Tip(0x2000), Packet::Fup(0x2000), Packet::TipPgd(None)];
    check(&encoded, &[&psb_plus(100, None), &before, &psb_plus(116, None), &[Packet::TipPge(0x4000)]]);
    assert_eq!(encoded.chunks[0].flags, AUX_FLAG_TRUNCATED);
    assert_eq!(encoded.chunks[1].offset, encoded.chunks[0].size);
    assert_eq!(encoded.injected[0].kind, "truncation");
}

#[test]
fn where_tracing_is_off_nothing_is_lost() {
    let options = Options { off: vec![110..115], ..plain() };
    let events =
        [enable(0x1000), ret(105, 0x1008, 0x2000), ret(111, 0x2008, 0x3000), ret(116, 0x3008, 0x4000)];
    let encoded = encode(0, &events, &options);
    let before = [Packet::TipPge(0x1000), Packet::Tip(0x2000), Packet::Fup(0x2000), Packet::TipPgd(None)];
    check(&encoded, &[&psb_plus(100, None), &before, &psb_plus(116, None), &[Packet::TipPge(0x4000)]]);
    assert!(encoded.chunks.iter().all(|chunk| chunk.flags == 0) && encoded.injected.is_empty());
}

#[test]
fn a_snapshot_keeps_the_last_bytes_and_says_from_when_on_they_can_be_decoded() {
    let events: Vec<_> = std::iter::once(enable(K))
        .chain((1..200).map(|n| ret(100 + n, K, K.wrapping_add(n * 0x100_0000))))
        .collect();
    let options = Options { snapshot: Some(300), psb_bytes: Some(100), ..plain() };
    let whole = encode(0, &events, &Options { snapshot: None, ..options.clone() });
    let kept = encode(0, &events, &options);
    assert_eq!(kept.bytes, whole.bytes[whole.bytes.len() - 300..]);
    assert_eq!((kept.chunks.len(), kept.chunks[0].flags), (1, AUX_FLAG_OVERWRITE));
    let first = kept.syncs[0];
    assert_eq!(kept.bytes[first.offset..first.offset + 4], [0x02, 0x82, 0x02, 0x82]);
    assert_eq!((kept.injected[0].kind, kept.injected[0].tsc_end), ("overwritten", first.tsc));
}

#[test]
fn chunks_are_the_stream_without_gaps() {
    let events: Vec<_> = std::iter::once(enable(K))
        .chain((1..500).map(|n| ret(100 + n, K, K.wrapping_add(n * 0x100_0000))))
        .collect();
    let encoded = encode(0, &events, &Options { chunk: 256, ..plain() });
    assert!(encoded.chunks.len() > 5);
    let mut end = 0;
    for chunk in &encoded.chunks {
        assert_eq!(chunk.offset, end);
        end += chunk.size;
    }
    assert_eq!(end, encoded.bytes.len());
}
