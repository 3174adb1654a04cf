// SPDX-License-Identifier: GPL-2.0-only
//! Builds calls from an edge file of any route.
//!
//! Routes through perf get losses and names from another source and write them after all edges. So the file is read
//! twice: first for losses and names, then for the edges.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use super::account::Account;
use super::builder::Builder;
use crate::edges::{self, Code, Edge, Event, Kind, Sink, ThreadName};
use crate::error::Result;
use crate::losses::Loss;
use crate::thread_pool::ThreadPool;

/// What is needed before the edges are read.
#[derive(Default)]
struct First {
    names: Vec<ThreadName>,
    /// By core, to be sorted by time.
    events: BTreeMap<i32, Vec<Placed>>,
    /// Edges so far: of all cores, and of each core.
    edges: u64,
    of_core: BTreeMap<i32, u64>,
}

/// An event, and how many edges precede it in the file.
struct Placed {
    event: Event,
    edges: u64,
    of_core: u64,
}

impl Sink for First {
    fn edge(&mut self, edge: &Edge) -> Result<()> {
        self.edges += 1;
        *self.of_core.entry(edge.cpu).or_default() += 1;
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        // Edges name their threads, and switches are very frequent.
        if !matches!(event.code, Code::SwitchIn | Code::SwitchOut) {
            let of_core = self.of_core.get(&event.cpu).copied().unwrap_or_default();
            let placed = Placed { event: *event, edges: self.edges, of_core };
            self.events.entry(event.cpu).or_default().push(placed);
        }
        Ok(())
    }

    fn symbols(&mut self, _: &[(Arc<str>, Arc<str>)]) -> Result<()> {
        Ok(())
    }

    fn names(&mut self, names: &[ThreadName]) -> Result<()> {
        self.names.extend_from_slice(names);
        Ok(())
    }
}

/// Inserts events between the edges of their core.
struct Second<'a> {
    builder: &'a mut Builder,
    events: BTreeMap<i32, VecDeque<Placed>>,
    /// Edges of all cores in the whole file.
    n_edges: u64,
    /// Edges of each core so far.
    of_core: BTreeMap<i32, u64>,
}

impl Placed {
    /// Whether the event comes before an edge that follows `of_core` other edges of its core.
    fn comes_before(&self, edge: &Edge, of_core: u64, n_edges: u64) -> bool {
        let event = &self.event;
        // If edges follow a loss in the file, the loss stands where it happened.
        if event.code.is_placed() && self.edges < n_edges {
            return self.of_core <= of_core;
        }
        // After a loss, the trace begins again: other edges with the time of the loss were decoded before it.
        event.time < edge.time
            || event.time == edge.time && (edge.kind == Kind::TraceBegin || !event.code.is_placed())
    }
}

impl Sink for Second<'_> {
    fn edge(&mut self, edge: &Edge) -> Result<()> {
        if let Some(events) = self.events.get_mut(&edge.cpu) {
            let of_core = self.of_core.entry(edge.cpu).or_default();
            while events.front().is_some_and(|e| e.comes_before(edge, *of_core, self.n_edges)) {
                let Some(placed) = events.pop_front() else { break };
                self.builder.event(&placed.event)?;
            }
            *of_core += 1;
        }
        self.builder.edge(edge)
    }

    fn event(&mut self, _: &Event) -> Result<()> {
        Ok(())
    }

    fn symbols(&mut self, new: &[(Arc<str>, Arc<str>)]) -> Result<()> {
        self.builder.symbols(new)
    }

    fn names(&mut self, _: &[ThreadName]) -> Result<()> {
        Ok(())
    }
}

/// Builds the table of an edge file in `directory`.
pub fn build(path: &Path, directory: &Path, pool: Arc<ThreadPool>) -> Result<Account> {
    let mut first = First::default();
    edges::read(path, &mut first)?;
    let mut builder = Builder::new(directory, pool)?;
    builder.names(&first.names)?;
    for events in first.events.values_mut() {
        events.sort_by_key(|e| e.event.time);
    }
    let events = first.events.into_iter().map(|(cpu, events)| (cpu, events.into())).collect();
    let n_edges = first.edges;
    let mut second = Second { builder: &mut builder, events, n_edges, of_core: BTreeMap::new() };
    let reader = edges::read(path, &mut second)?;
    for placed in std::mem::take(&mut second.events).into_values().flatten() {
        second.builder.event(&placed.event)?;
    }
    builder.account.losses.add(Loss::EdgesCut, reader.cut.into());
    builder.account.losses.add(Loss::EdgesUnknown, reader.unknown);
    builder.finish()
}
