// SPDX-License-Identifier: GPL-2.0-only
//! Events of the side-band: switches of threads, and what perf lost.

use std::collections::{BTreeMap, VecDeque};

use super::tracks::TrackData;
use crate::edges::{Code, Event};
use crate::perfdata::{Loss as SideLoss, LossKind, Owner, Recording, SideBand, Switch};

/// The side-band's events, by track.
pub fn side_events(recording: &Recording, tracks: &[TrackData]) -> Vec<VecDeque<Event>> {
    let side = &recording.side;
    let mut events: Vec<Vec<Event>> = tracks.iter().map(|track| switch_events(side, track.owner)).collect();
    let by_owner: BTreeMap<Owner, usize> = tracks.iter().enumerate().map(|(i, t)| (t.owner, i)).collect();
    for loss in &side.losses {
        let of = |owner| by_owner.get(&owner).copied();
        let track = of(Owner::Cpu(loss.cpu)).or_else(|| of(Owner::Thread(loss.tid)));
        // A loss that belongs to no buffer is counted once.
        if let Some(events) = events.get_mut(track.unwrap_or(0)) {
            events.push(loss_event(loss, track.map(|track| &tracks[track])));
        }
    }
    events.iter_mut().for_each(|events| events.sort_by_key(|e| e.time));
    events.into_iter().map(VecDeque::from).collect()
}

fn switch_events(side: &SideBand, owner: Owner) -> Vec<Event> {
    let Owner::Cpu(cpu) = owner else { return Vec::new() };
    let code = |s: &Switch| if s.out { Code::SwitchOut } else { Code::SwitchIn };
    let event = |s: &Switch| Event { time: s.time, cpu, pid: s.pid, tid: s.tid, code: code(s), value: 0 };
    side.switches.get(&cpu).into_iter().flatten().map(event).collect()
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
