// SPDX-License-Identifier: GPL-2.0-only
//! Events of the side-band: switches of threads, and what perf lost.

use std::collections::{BTreeMap, VecDeque};

use super::tracks::TrackData;
use crate::edges::{Code, Event};
use crate::perfdata::{Loss as SideLoss, LossKind, Owner, Recording, SwitchReader};

/// The side-band's events of a track, in order. Switches are read when their turn comes: a recording may have millions of them.
pub struct SideEvents<'a> {
    cpu: i32,
    switches: Option<SwitchReader<'a>>,
    /// The next switch, and the number of the one after it.
    switch: Option<Event>,
    number: usize,
    losses: VecDeque<Event>,
    /// The first event.
    front: Option<Event>,
}

impl<'a> SideEvents<'a> {
    fn new(cpu: i32, switches: Option<SwitchReader<'a>>, losses: Vec<Event>) -> Self {
        let mut events = Self { cpu, switches, switch: None, number: 0, losses: losses.into(), front: None };
        events.read_switch();
        events.set_front();
        events
    }

    /// The first event.
    pub fn front(&self) -> Option<&Event> {
        self.front.as_ref()
    }

    pub fn pop_front(&mut self) -> Option<Event> {
        let first = self.front?;
        if self.is_switch_first() {
            self.read_switch();
        } else {
            self.losses.pop_front();
        }
        self.set_front();
        Some(first)
    }

    fn is_switch_first(&self) -> bool {
        let loss = self.losses.front().map_or(u64::MAX, |loss| loss.time);
        self.switch.is_some_and(|switch| switch.time <= loss)
    }

    fn set_front(&mut self) {
        self.front = if self.is_switch_first() { self.switch } else { self.losses.front().copied() };
    }

    fn read_switch(&mut self) {
        let cpu = self.cpu;
        self.switch = self.switches.as_mut().and_then(|switches| switches.get(self.number)).map(|s| {
            let code = if s.out { Code::SwitchOut } else { Code::SwitchIn };
            Event { time: s.time, cpu, pid: s.pid, tid: s.tid, code, value: 0 }
        });
        self.number += 1;
    }
}

/// The side-band's events, by track.
pub fn side_events<'a>(
    recording: &'a Recording,
    tracks: &[TrackData],
    with_switches: bool,
) -> Vec<SideEvents<'a>> {
    let side = &recording.side;
    let mut losses: Vec<Vec<Event>> = vec![Vec::new(); tracks.len()];
    let by_owner: BTreeMap<Owner, usize> = tracks.iter().enumerate().map(|(i, t)| (t.owner, i)).collect();
    for loss in &side.losses {
        let of = |owner| by_owner.get(&owner).copied();
        let track = of(Owner::Cpu(loss.cpu)).or_else(|| of(Owner::Thread(loss.tid)));
        // A loss that belongs to no buffer is counted once.
        if let Some(losses) = losses.get_mut(track.unwrap_or(0)) {
            losses.push(loss_event(loss, track.map(|track| &tracks[track])));
        }
    }
    let of_track = |(track, mut losses): (&TrackData, Vec<Event>)| {
        losses.sort_by_key(|e| e.time);
        let cpu = if let Owner::Cpu(cpu) = track.owner { cpu } else { -1 };
        let switches = side.switches.of(cpu).filter(|_| with_switches && cpu >= 0);
        SideEvents::new(cpu, switches, losses)
    };
    tracks.iter().zip(losses).map(of_track).collect()
}

fn loss_event(loss: &SideLoss, track: Option<&TrackData>) -> Event {
    let code = match loss.kind {
        LossKind::AuxTruncated => Code::AuxTruncated,
        LossKind::AuxOverwritten | LossKind::AuxPartial => Code::AuxPartial,
        LossKind::Records => Code::LostRecords,
    };
    let (time, value) = (loss.time, loss.value);
    match track {
        // The edges of that thread get their CPU in the same way.
        Some(data) if matches!(data.owner, Owner::Thread(_)) => {
            Event { time, cpu: data.cpu(time), pid: loss.pid, tid: loss.tid, code, value }
        }
        _ => Event { time, cpu: loss.cpu, pid: -1, tid: -1, code, value },
    }
}
