// SPDX-License-Identifier: GPL-2.0-only
//! Which slices are to be decoded.

use super::options::Options;
use super::tracks::{tracks, TrackData};
use crate::code::Code;
use crate::perfdata::{Owner, Recording};
use crate::pt::walk::Slice;

/// Bytes after a slice that may be read to join it with the next one.
const OVERLAP_BYTES: usize = 32 << 10;

/// A slice of each track is in memory at the same time. If there are many tracks, slices are shorter: this many bytes for all of them
/// together, but not less than this for each, because slices overlap.
const ALL_SLICES: usize = 4 << 20;
const LEAST_SLICE: usize = 64 << 10;

/// A slice and where it belongs.
pub struct Place {
    pub track: usize,
    pub run: usize,
    pub slice: Slice,
    /// It continues where the previous slice of the track ends.
    pub continues: bool,
}

impl Place {
    pub fn size(&self) -> u64 {
        (self.slice.end - self.slice.begin) as u64
    }
}

pub struct Plan {
    pub tracks: Vec<TrackData>,
    /// In order of time.
    pub slices: Vec<Place>,
    /// Bytes before the first PSB of each run: decoding cannot begin there.
    pub bytes_before_psb: u64,
    /// Tracks without any PSB.
    pub never_entered: usize,
}

impl Plan {
    pub fn new(recording: &Recording, code: &Code, options: &Options) -> Self {
        let tracks = tracks(recording, code);
        let most = options.slice.min((ALL_SLICES / tracks.len().max(1)).max(LEAST_SLICE));
        let mut plan = Self { tracks: Vec::new(), slices: Vec::new(), bytes_before_psb: 0, never_entered: 0 };
        for (track, data) in tracks.iter().enumerate() {
            plan.never_entered += usize::from(data.runs.iter().all(|run| run.psbs.is_empty()));
            for (number, run) in data.runs.iter().enumerate() {
                plan.bytes_before_psb += run.psbs.first().map_or(run.len, |p| p.offset) as u64;
                let time = |index: usize| recording.info.conv.ns(run.psbs[index].tsc);
                let offset = |index: usize| run.psbs.get(index).map_or(run.len, |p| p.offset);
                let n = run.psbs.len();
                let cpu = match data.owner {
                    Owner::Cpu(cpu) => Some(cpu),
                    Owner::Thread(_) => None,
                };
                // Whether an interval between two PSBs is selected; one more before it gives context.
                let wanted = |index: usize| {
                    let end = if index + 1 < n { time(index + 1) } else { u64::MAX };
                    options.windows.touch(cpu, time(index), end)
                };
                let chosen: Vec<bool> = (0..n).map(|i| wanted(i) || i + 1 < n && wanted(i + 1)).collect();
                let mut index = 0;
                let mut last_end = None;
                while index < n {
                    if !chosen[index] {
                        index += 1;
                        continue;
                    }
                    let first = index;
                    while index < n
                        && chosen[index]
                        && (index == first || offset(index + 1) - offset(first) <= most)
                    {
                        index += 1;
                    }
                    let (begin, end) = (offset(first), offset(index));
                    // After the last selected interval, there is nothing to join.
                    let joined = index < n && chosen[index];
                    let read_end = if joined { (end + OVERLAP_BYTES).min(run.len) } else { end };
                    let slice = Slice { begin, end, read_end, time: time(first) };
                    let continues = last_end == Some(begin);
                    plan.slices.push(Place { track, run: number, slice, continues });
                    last_end = Some(end);
                }
            }
        }
        plan.slices.sort_by_key(|p| (p.slice.time, p.track, p.run, p.slice.begin));
        plan.tracks = tracks;
        plan
    }

    pub fn bytes(&self) -> u64 {
        self.slices.iter().map(Place::size).sum()
    }
}
