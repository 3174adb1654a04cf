// SPDX-License-Identifier: GPL-2.0-only
//! What the gate checks: the log, and how it was encoded.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use pt_events::{Event, Kind};
use pt_walk::Walk;
use serde::Deserialize;

use crate::compare::{Expected, Injected};

#[derive(Deserialize)]
pub struct Options {
    pub cyc: bool,
    pub noretcomp: bool,
    pub user_only: bool,
    pub kernel_only: bool,
    pub filter: Vec<std::ops::Range<u64>>,
    pub tracestop: Vec<std::ops::Range<u64>>,
    only: Option<std::ops::Range<u64>>,
}

impl Options {
    pub fn is_filtered(&self) -> bool {
        self.user_only || self.kernel_only || !self.filter.is_empty() || !self.tracestop.is_empty()
    }

    fn traces(&self, ip: u64) -> bool {
        let level = if pt_events::is_kernel(ip) { !self.user_only } else { !self.kernel_only };
        level && (self.filter.is_empty() || self.filter.iter().any(|range| range.contains(&ip)))
    }
}

#[derive(Deserialize)]
struct Cpu {
    file: String,
}

#[derive(Deserialize)]
struct Stats {
    bytes: u64,
}

#[derive(Deserialize)]
pub struct Aux {
    pub options: Options,
    pub injected: Vec<Injected>,
    cpus: Vec<Cpu>,
    stats: Stats,
}

pub struct Capture {
    pub walk: Walk,
    pub aux: Aux,
    directory: PathBuf,
}

impl Capture {
    pub fn load(log: &Path, directory: &Path) -> Result<Self> {
        let file = File::open(log).with_context(|| log.display().to_string())?;
        let reader = pt_log::Reader::new(BufReader::with_capacity(1 << 20, file));
        let mut walk = reader.and_then(pt_walk::walk).with_context(|| log.display().to_string())?;
        let path = directory.join("aux.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let aux: Aux = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        ensure!(aux.cpus.len() == walk.cpus.len(), "{}: is not of {}", path.display(), log.display());
        if let Some(ticks) = &aux.options.only {
            for events in &mut walk.cpus {
                *events = pt_events::only(events, ticks);
            }
        }
        Ok(Self { walk, aux, directory: directory.to_owned() })
    }

    pub fn aux_file(&self, cpu: usize) -> PathBuf {
        self.directory.join(&self.aux.cpus[cpu].file)
    }

    pub fn bytes_per_million(&self) -> u64 {
        (self.aux.stats.bytes * 1_000_000).checked_div(self.walk.report.instructions).unwrap_or(0)
    }

    /// The branches of a CPU that decoders list: those that were taken, in traced code.
    pub fn expected(&self, cpu: usize) -> Vec<Expected> {
        let mut on = true;
        let expected = |event: &Event| {
            let (from, to) = event.kind.ends()?;
            let seen = on && self.aux.options.traces(from) && self.aux.options.traces(to);
            on &= !self.aux.options.tracestop.iter().any(|range| range.contains(&to));
            let silent = matches!(event.kind, Kind::Jump { .. } | Kind::Call { .. });
            let taken = !matches!(event.kind, Kind::Cond { taken: false, .. });
            (seen && taken).then_some(Expected { tsc: event.tsc, from, to, silent })
        };
        self.walk.cpus[cpu].iter().filter_map(expected).collect()
    }

    /// The events of a CPU.
    pub fn events(&self, cpu: usize) -> &[Event] {
        &self.walk.cpus[cpu]
    }
}
