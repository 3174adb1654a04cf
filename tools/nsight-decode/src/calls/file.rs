// SPDX-License-Identifier: GPL-2.0-only
//! An edge file, of any route, to calls.
//!
//! Routes through perf learn of losses and names elsewhere and write them behind all edges, so the
//! file is read twice: for those, and for the edges.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use super::account::Account;
use super::builder::Builder;
use crate::edges::{self, Code, Edge, Event, Sink, ThreadName};
use crate::error::Result;
use crate::losses::Loss;
use crate::thread_pool::ThreadPool;

/// What is needed before the edges.
#[derive(Default)]
struct First {
    names: Vec<ThreadName>,
    /// By core, to be sorted by time.
    events: BTreeMap<i32, Vec<Event>>,
}

impl Sink for First {
    fn edge(&mut self, _: &Edge) -> Result<()> {
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        // Edges have their threads, and switches are as many as anything.
        if !matches!(event.code, Code::SwitchIn | Code::SwitchOut) {
            self.events.entry(event.cpu).or_default().push(*event);
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

/// Puts events before the first edge of their core that is not earlier.
struct Second<'a> {
    builder: &'a mut Builder,
    events: BTreeMap<i32, VecDeque<Event>>,
}

impl Sink for Second<'_> {
    fn edge(&mut self, edge: &Edge) -> Result<()> {
        if let Some(events) = self.events.get_mut(&edge.cpu) {
            while events.front().is_some_and(|e| e.time <= edge.time) {
                let Some(event) = events.pop_front() else { break };
                self.builder.event(&event)?;
            }
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
        events.sort_by_key(|e| e.time);
    }
    let events = first.events.into_iter().map(|(cpu, events)| (cpu, events.into())).collect();
    let mut second = Second { builder: &mut builder, events };
    let reader = edges::read(path, &mut second)?;
    for event in std::mem::take(&mut second.events).into_values().flatten() {
        second.builder.event(&event)?;
    }
    builder.account.losses.add(Loss::EdgesCut, reader.cut.into());
    builder.account.losses.add(Loss::EdgesUnknown, reader.unknown_blocks);
    builder.finish()
}
