// SPDX-License-Identifier: GPL-2.0-only
//! libipt's result for the packets, and the times in the packets.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use pt_events::{Event, Kind};
use serde::Serialize;

use crate::capture::Capture;
use crate::compare::{Comparer, Comparison, Expected};

#[derive(Debug, Default, Serialize)]
pub struct Judgement {
    pub branches: Comparison,
    pub errors: u64,
    pub examples: Vec<String>,
    /// RDTSC values compared with packets, and the largest difference, ticks.
    pub readings: u64,
    pub max_time_difference: u64,
}

/// Writes the executed pages in the format of pt-libipt.
pub fn write_code(capture: &Capture, path: &Path) -> Result<()> {
    let mut out = BufWriter::new(File::create(path).with_context(|| path.display().to_string())?);
    for (space, address, since, bytes) in capture.walk.code.versions() {
        for word in [space, address, since] {
            out.write_all(&word.to_le_bytes())?;
        }
        out.write_all(bytes)?;
    }
    out.flush().with_context(|| path.display().to_string())
}

/// libipt recognizes a branch because execution does not continue at the next instruction: it does not see a branch to
/// the next instruction.
fn visible(capture: &Capture, cpu: usize) -> Vec<Expected> {
    let goes_on = |e: &Expected| {
        if e.to <= e.from || e.to - e.from > 15 {
            return false;
        }
        let mut bytes = [0; 15];
        // Search all address spaces, kernel and user: any that has the address gives the length.
        let n = capture.walk.code.read_any(e.from, &mut bytes);
        pt_walk::length(&bytes[..n]) == Some(e.to - e.from)
    };
    capture.expected(cpu).into_iter().filter(|e| !goes_on(e)).collect()
}

/// Events that have a bit or packet, and times of RDTSC, in order.
enum Told {
    Branch(u64),
    Rdtsc { tsc: u64, value: u64 },
}

fn told(events: &[Event]) -> impl Iterator<Item = Told> + '_ {
    events.iter().filter_map(|event| match event.kind {
        Kind::Jump { .. } | Kind::Call { .. } => None,
        Kind::Enable { .. } | Kind::Disable { .. } => Some(Told::Branch(event.tsc)),
        Kind::Tsc { value } => Some(Told::Rdtsc { tsc: event.tsc, value }),
        kind => kind.ends().map(|_| Told::Branch(event.tsc)),
    })
}

/// Matches the packets with the events.
struct Clock<'a> {
    told: Box<dyn Iterator<Item = Told> + 'a>,
    /// Guest's TSC minus the log's time, at the last RDTSC.
    guest: Option<u64>,
    readings: u64,
    max_difference: u64,
}

impl Clock<'_> {
    /// Takes a packet of `bits` branches; 0: a packet with an address.
    fn packet(&mut self, time: u64, bits: u64) {
        let mut fresh = false;
        let mut last = None;
        for _ in 0..bits.max(1) {
            loop {
                match self.told.next() {
                    Some(Told::Branch(tsc)) => {
                        last = Some(tsc);
                        break;
                    }
                    Some(Told::Rdtsc { tsc, value }) => {
                        self.guest = Some(value.wrapping_sub(tsc));
                        fresh = true;
                    }
                    None => return,
                }
            }
        }
        // Packets with an address are sent at once; bits may wait for further bits.
        if let (Some(guest), Some(tsc), 0, true) = (self.guest, last, bits, fresh) {
            let apart = time.wrapping_sub(tsc.wrapping_add(guest)) as i64;
            self.max_difference = self.max_difference.max(apart.unsigned_abs());
            self.readings += 1;
        }
    }
}

pub fn judge(capture: &Capture, cpu: usize, tool: &Path, code: &Path) -> Result<Judgement> {
    let expected = visible(capture, cpu);
    // libipt reports an overflow before the instruction that the last branch led to.
    let mut comparer = Comparer::new(cpu, &expected, &capture.aux.injected).with_edge(1);
    let whole = capture.aux.injected.iter().all(|i| i.cpu != cpu) && !capture.aux.options.is_filtered();
    let told: Box<dyn Iterator<Item = Told>> = Box::new(told(capture.events(cpu)));
    let mut clock = (whole && capture.aux.options.cyc).then_some(Clock {
        told,
        guest: None,
        readings: 0,
        max_difference: 0,
    });
    let mut judgement = Judgement::default();

    let mut child = Command::new(tool)
        .arg(capture.aux_file(cpu))
        .arg(code)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| {
            format!("{}: cannot be run (make -C tests/machinery/pt_emulation)", tool.display())
        })?;
    let mut out = BufReader::with_capacity(1 << 20, child.stdout.take().context("no output")?);
    let mut words = [0; 24];
    while out.read_exact(&mut words).is_ok() {
        let word = |n: usize| u64::from_le_bytes(words[8 * n..8 * n + 8].try_into().unwrap());
        match word(0) {
            1 => drop(comparer.next(word(1), word(2))),
            2 => {
                judgement.errors += 1;
                if judgement.examples.len() < 5 {
                    judgement.examples.push(format!("offset {:#x}: libipt error {}", word(1), word(2)));
                }
            }
            4 => {
                if let Some(clock) = &mut clock {
                    clock.packet(word(1), word(2));
                }
            }
            _ => {}
        }
    }
    let status = child.wait().context("pt-libipt")?;
    ensure!(status.success(), "pt-libipt ended with {status}");
    judgement.branches = comparer.finish();
    if let Some(clock) = clock {
        judgement.readings = clock.readings;
        judgement.max_time_difference = clock.max_difference;
    }
    Ok(judgement)
}
