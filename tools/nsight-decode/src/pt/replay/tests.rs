// SPDX-License-Identifier: GPL-2.0-only
//! Packets written by hand, and what each branch or event gets of them.

use super::*;
use crate::packets::index::PSB;

const RATES: Rates = Rates { tsc_ctc: (0, 0), mtc_shift: None, nominal: 20 };
const TIP: &[u8] = &[0x2d, 1, 2];
const FUP: &[u8] = &[0x3d, 1, 2];
const DISABLE: &[u8] = &[0x01];
const ENABLE: &[u8] = &[0x31, 1, 2];
const OVERFLOW: &[u8] = &[2, 0xf3];
const PTWRITE: &[u8] = &[2, 0x92, 1, 2, 3, 4];
const ONE: &[u8] = &[0x06];
const THREE: &[u8] = &[0x18];

/// A CYC packet of one cycle before each packet, and a PSB+ with TSC 1000 in front.
fn trace(packets: &[&[u8]]) -> Vec<u8> {
    let mut bytes = plus(1000);
    for packet in packets {
        bytes.push(0x0b);
        bytes.extend_from_slice(packet);
    }
    bytes
}

fn plus(tsc: u16) -> Vec<u8> {
    let [low, high] = tsc.to_le_bytes();
    let status: &[u8] = &[0x19, low, high, 0, 0, 0, 0, 0, 2, 3, 20, 0, 0x99, 1];
    [&PSB[..], status, FUP, &[2, 0x23]].concat()
}

/// The result and the time for each need.
fn told(mut bytes: &[u8], needs: &[Need]) -> Vec<(Told, u64)> {
    let mut replay = Replay::new(RATES);
    replay.begin(&mut bytes, 0);
    needs.iter().map(|&need| (replay.take(&mut bytes, need), replay.tsc.unwrap())).collect()
}

#[test]
fn a_branch_has_the_time_of_its_own_packet() {
    use Need::{Taken, Target};
    let bytes = trace(&[THREE, TIP, ONE]);
    assert_eq!(
        told(&bytes, &[Taken, Target, Taken, Taken, Taken, Taken]),
        [
            (Told::Packet, 1001),
            // It may come after branches of code that runs later.
            (Told::Packet, 1002),
            (Told::Rest, 1002),
            (Told::Rest, 1002),
            (Told::Packet, 1003),
            (Told::Nothing, 1003),
        ]
    );
    assert_eq!(told(&trace(&[THREE, TIP]), &[Target, Taken]), [(Told::Packet, 1002), (Told::Rest, 1002)]);
}

#[test]
fn an_event_has_its_own_packets() {
    use Need::{Disable, Enable, Interrupt, Overflow, Taken, Target};
    let bytes = trace(&[ONE, FUP, TIP, FUP, DISABLE, ENABLE, OVERFLOW, FUP, PTWRITE, FUP, TIP]);
    assert_eq!(
        told(&bytes, &[Taken, Target, Interrupt, Disable, Target, Enable, Overflow(true), Target]),
        [
            (Told::Packet, 1001),
            // The interrupt comes first: there is no packet for the call.
            (Told::Nothing, 1001),
            (Told::Packet, 1003),
            (Told::Packet, 1005),
            (Told::Nothing, 1005),
            (Told::Packet, 1006),
            (Told::Packet, 1008),
            // A FUP that belongs to PTWRITE is not an event.
            (Told::Packet, 1011),
        ]
    );
}

#[test]
fn a_psb_between_is_passed_and_its_time_taken() {
    let bytes = [trace(&[ONE]), plus(2000), trace(&[])[..0].to_vec(), vec![0x0b], TIP.to_vec()].concat();
    let mut replay = Replay::new(RATES);
    replay.begin(&mut &bytes[..], 0);
    assert_eq!(replay.take(&mut &bytes[..], Need::Taken), Told::Packet);
    assert_eq!((replay.at, replay.tsc), (bytes.len() - TIP.len(), Some(1001)));
    assert_eq!(replay.take(&mut &bytes[..], Need::Target), Told::Packet);
    assert_eq!((replay.at, replay.tsc), (bytes.len(), Some(2001)));
    assert_eq!(replay.take(&mut &bytes[..], Need::Target), Told::Nothing);
}

#[test]
fn time_goes_on_over_packets_that_tell_none() {
    use Need::{Taken, Target};
    let mtc: &[u8] = &[0x59, 1];
    let bytes = trace(&[ONE, mtc, ONE, mtc, TIP]);
    let times = [(Told::Packet, 1001), (Told::Packet, 1003), (Told::Packet, 1005)];
    assert_eq!(told(&bytes, &[Taken, Taken, Target]), times);
}

#[test]
fn a_trace_without_time_is_not_looked_through_again_and_again() {
    let bytes = trace(&[TIP; 6_000]);
    let mut replay = Replay::new(RATES);
    (0..6_000).for_each(|_| replay.begin(&mut &bytes[..], 0));
    // Reading all packets each time would be 72 million packets.
    assert_eq!(replay.n_ahead, AHEAD * bytes.len() as u64);
}

#[test]
fn what_libipt_cannot_have_read_is_told() {
    use Need::{Enable, Interrupt, Return, Taken, Target};
    for (packets, need) in [
        (&[TIP][..], Taken),
        (&[ONE], Interrupt),
        (&[ONE], Enable),
        (&[TIP, ONE], Enable),
        (&[DISABLE], Interrupt),
    ] {
        assert_eq!(told(&trace(packets), &[need]), [(Told::Contradiction, 1000)], "{packets:x?}");
    }
    assert_eq!(told(&trace(&[THREE, ONE, TIP]), &[Taken, Target])[1].0, Told::Contradiction);
    assert_eq!(told(&trace(&[ONE, TIP]), &[Return, Return]), [(Told::Packet, 1001), (Told::Packet, 1002)]);
    assert_eq!(told(&trace(&[]), &[Interrupt]), [(Told::Nothing, 1000)]);
}
