// SPDX-License-Identifier: GPL-2.0-only
//! Events of the side-band: switches of threads, and what perf lost.

use std::collections::{BTreeMap, VecDeque};

use super::tracks::TrackData;
use crate::edges::{Code, Event};
use crate::perfdata::{Loss as SideLoss, LossKind, Owner, Recording, Switch};

/// The side-band's events of a track, in order. Switches are made from their records when their turn comes: a recording may have
/// millions of them.
pub struct SideEvents<'a> {
    cpu: i32,
    switches: &'a [Switch],
    losses: VecDeque<Event>,
}

impl SideEvents<'_> {
    /// The first event.
    pub fn front(&self) -> Option<Event> {
        if self.is_switch_first() {
            return self.switches.first().map(|switch| self.switch(switch));
        }
        self.losses.front().copied()
    }

    pub fn pop_front(&mut self) -> Option<Event> {
        let first = self.front();
        if self.is_switch_first() {
            self.switches = &self.switches[1..];
        } else {
            self.losses.pop_front();
        }
        first
    }

    fn is_switch_first(&self) -> bool {
        let loss = self.losses.front().map_or(u64::MAX, |loss| loss.time);
        self.switches.first().is_some_and(|switch| switch.time <= loss)
    }

    fn switch(&self, s: &Switch) -> Event {
        let code = if s.out { Code::SwitchOut } else { Code::SwitchIn };
        Event { time: s.time, cpu: self.cpu, pid: s.pid, tid: s.tid, code, value: 0 }
    }
}

/// The side-band's events, by track.
pub fn side_events<'a>(recording: &'a Recording, tracks: &[TrackData]) -> Vec<SideEvents<'a>> {
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
        let switches = side.switches.get(&cpu).filter(|_| cpu >= 0).map_or(&[][..], Vec::as_slice);
        SideEvents { cpu, switches, losses: losses.into() }
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
