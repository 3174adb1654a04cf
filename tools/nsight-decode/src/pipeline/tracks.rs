// SPDX-License-Identifier: GPL-2.0-only
//! One track for each recorded buffer: of a CPU, or of a thread.

use crate::code::Code;
use crate::packets::index::{runs, Run};
use crate::perfdata::{Owner, PtConfig, Recording, Switches};
use crate::pt::switches::{Task, UNKNOWN};
use crate::pt::walk::Track;

pub struct TrackData {
    pub owner: Owner,
    pub track: Track,
    pub runs: Vec<Run>,
    /// Where a traced thread ran: since when, and on which CPU.
    pub cpus: Vec<(u64, i32)>,
}

/// With cycle counts, packet times are exact; without them, they are as exact as the packets' period.
const SLACK_CYC: u64 = 2_000;
const SLACK_MTC: u64 = 20_000;
/// From one PSB to the next.
const SLACK_TSC: u64 = 10_000_000;

pub fn tracks(recording: &Recording, code: &Code) -> Vec<TrackData> {
    let slack = match recording.config {
        PtConfig { cyc: true, .. } => SLACK_CYC,
        PtConfig { mtc: Some(_), .. } => SLACK_MTC,
        _ => SLACK_TSC,
    };
    let side = &recording.side;
    let mut tracks = Vec::new();
    for (&owner, chunks) in &recording.streams {
        let (of_cpu, start, cpus) = match owner {
            Owner::Cpu(cpu) => {
                let start = side.starts.iter().find(|(c, _, _)| *c == cpu);
                // Without records of switches, perf traced one thread.
                let only = chunks.first().map(|chunk| chunk.tid).filter(|&tid| tid > 0);
                let only = only.filter(|_| !side.switches.has(cpu));
                let process = |tid| Some(code.tasks.process_of(tid)).filter(|&pid| pid >= 0).unwrap_or(tid);
                let only = only.map_or(UNKNOWN, |tid| Task { pid: process(tid), tid });
                let start = start.map_or(only, |&(_, pid, tid)| Task { pid, tid });
                (Some(cpu), start, Vec::new())
            }
            Owner::Thread(tid) => {
                let told = side.starts.iter().find(|(_, _, t)| *t == tid).map(|&(_, pid, _)| pid);
                let pid = told.unwrap_or_else(|| code.tasks.process_of(tid));
                (None, Task { pid, tid }, cpus_of(tid, &side.switches))
            }
        };
        let track = Track { cpu: of_cpu, start, slack };
        tracks.push(TrackData { owner, track, runs: runs(chunks, recording), cpus });
    }
    tracks
}

fn cpus_of(tid: i32, switches: &Switches) -> Vec<(u64, i32)> {
    let mut cpus: Vec<(u64, i32)> = Vec::new();
    for cpu in switches.cpus() {
        let Some(mut records) = switches.of(cpu) else { continue };
        let records = (0..).map_while(|n| records.get(n));
        cpus.extend(records.filter(|r| r.tid == tid && !r.out).map(|r| (r.time, cpu)));
    }
    cpus.sort_unstable();
    cpus
}

impl TrackData {
    /// The CPU at a time; -1 if it is not known.
    pub fn cpu(&self, time: u64) -> i32 {
        match self.owner {
            Owner::Cpu(cpu) => cpu,
            Owner::Thread(_) => {
                let at = self.cpus.partition_point(|(since, _)| *since <= time);
                self.cpus.get(at.saturating_sub(1)).map_or(-1, |&(_, cpu)| cpu)
            }
        }
    }
}
