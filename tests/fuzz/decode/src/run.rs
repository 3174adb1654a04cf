// SPDX-License-Identifier: GPL-2.0-only
//! Does the same as nsight-decode with a recording, in this process.

use std::collections::HashMap;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use nsight_decode::calls::Builder;
use nsight_decode::code::{Code, KernelSource};
use nsight_decode::edges::{Edge, Event, Sink, ThreadName};
use nsight_decode::error::Result;
use nsight_decode::packets::index::runs;
use nsight_decode::perfdata::layout::feature;
use nsight_decode::perfdata::Recording;
use nsight_decode::pipeline::{self, Options};
use nsight_decode::thread_pool::ThreadPool;
use nsight_decode::windows::Windows;

use crate::program::{self, KERNEL, KERNEL_CODE, USER, USER_CODE};
use crate::scratch::{directory, Memory};

/// The fixed kernel's vmlinux, and the root directory with its machine's files.
fn machine() -> (&'static KernelSource, PathBuf) {
    static MADE: OnceLock<(KernelSource, Memory)> = OnceLock::new();
    let root = directory().join("root");
    let (source, _) = MADE.get_or_init(|| {
        std::fs::create_dir_all(&root).expect("a directory");
        for name in ["a", "b"] {
            std::fs::write(root.join(name), program::elf(USER, USER_CODE)).expect("a program");
        }
        let vmlinux = Memory::new(&program::elf(KERNEL, KERNEL_CODE));
        (KernelSource { kcore: None, vmlinux: Some(vmlinux.path()) }, vmlinux)
    });
    (source, root)
}

/// The fixed machine's code for a recording.
pub fn code_of(recording: &Recording) -> Result<Code> {
    let (source, root) = machine();
    Code::new(recording, Some(&root), source)
}

/// Reads what `info` reports.
pub fn info(recording: &Recording) {
    for bit in [feature::HOSTNAME, feature::OSRELEASE, feature::CPUID] {
        black_box(recording.file.text(bit));
    }
    black_box(recording.is_of_this_machine());
    for chunks in recording.streams.values() {
        let runs = runs(chunks, recording);
        black_box(runs.iter().map(|run| run.len + run.psbs.len()).sum::<usize>());
    }
}

fn options(slice: usize) -> Options {
    let windows = Windows::parse(&[]).expect("all");
    Options { windows, slice, with_context: true, progress: false, bare: false }
}

/// Decodes everything into `sink`, with one thread.
pub fn decode(recording: &Recording, code: &Code, slice: usize, sink: &mut dyn Sink) -> Result<()> {
    pipeline::run(recording, code, &options(slice), &ThreadPool::new(1), sink)
        .map(|counts| drop(black_box(counts)))
}

/// The directory for tables of calls.
pub fn tables() -> PathBuf {
    directory().join("calls")
}

/// Checks its input, and optionally builds calls from it.
pub struct Checked {
    calls: Option<Builder>,
    last: HashMap<i32, u64>,
    n_symbols: usize,
}

impl Checked {
    pub fn new(with_calls: bool) -> Result<Self> {
        let calls = with_calls.then(|| Builder::new(&tables(), Arc::new(ThreadPool::new(1)))).transpose()?;
        Ok(Self { calls, last: HashMap::new(), n_symbols: 0 })
    }

    pub fn finish(self) -> Result<()> {
        self.calls.map_or(Ok(()), |calls| calls.finish().map(drop))
    }
}

impl Sink for Checked {
    fn edge(&mut self, edge: &Edge) -> Result<()> {
        let last = self.last.entry(edge.cpu).or_default();
        assert!(edge.time >= *last, "an edge goes back in time: {edge:?}, the last was at {last}");
        *last = edge.time;
        let known = self.n_symbols.max(1);
        assert!((edge.from_sym as usize) < known && (edge.to_sym as usize) < known, "{edge:?} of {known}");
        self.calls.as_mut().map_or(Ok(()), |calls| calls.edge(edge))
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        self.calls.as_mut().map_or(Ok(()), |calls| calls.event(event))
    }

    fn symbols(&mut self, new: &[(Arc<str>, Arc<str>)]) -> Result<()> {
        self.n_symbols += new.len();
        self.calls.as_mut().map_or(Ok(()), |calls| calls.symbols(new))
    }

    fn names(&mut self, names: &[ThreadName]) -> Result<()> {
        self.calls.as_mut().map_or(Ok(()), |calls| calls.names(names))
    }
}
