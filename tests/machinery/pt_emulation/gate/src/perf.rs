// SPDX-License-Identifier: GPL-2.0-only
//! The result of stock perf for the capture.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use pt_merger::side_band::TimeConv;
use serde::Serialize;

use crate::capture::Capture;
use crate::compare::{Comparer, Comparison, Expected};

#[derive(Debug, Default, Serialize)]
pub struct Judgement {
    pub branches: Vec<Comparison>,
    pub errors: u64,
    /// Errors outside of injected losses.
    pub unexpected_errors: u64,
    /// Injected losses for which perf reported nothing.
    pub silent_losses: u64,
    pub examples: Vec<String>,
    /// perf's time of a branch minus the log's, ns: minimum, p1, median, p99, maximum.
    pub time_error_ns: [i64; 5],
}

/// A line of `perf script -F cpu,time,ip,addr,flags`.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Branch {
        cpu: usize,
        ns: u64,
        from: u64,
        to: u64,
    },
    /// Tracing begins or ends here.
    Edge,
    Error {
        cpu: usize,
        ns: u64,
    },
}

fn ns(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let scale = 10u64.checked_pow(9u32.checked_sub(fraction.len() as u32)?)?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + fraction.parse::<u64>().ok()? * scale)
}

fn parse(line: &str) -> Option<Line> {
    if let Some((_, error)) = line.split_once("instruction trace error type 1 ") {
        let mut words = error.split_whitespace();
        let mut after = |name| words.find(|&w| w == name).and_then(|_| words.next());
        return Some(Line::Error { ns: ns(after("time")?)?, cpu: after("cpu")?.parse().ok()? });
    }
    let (cpu, rest) = line.split_once(']')?;
    let cpu = cpu.trim().trim_start_matches('[').parse().ok()?;
    let (time, rest) = rest.split_once(':')?;
    let (left, to) = rest.split_once("=>")?;
    let (flags, from) = left.trim_end().rsplit_once(' ').unwrap_or(("", left.trim()));
    let to = u64::from_str_radix(to.split_whitespace().next()?, 16).ok()?;
    let from = u64::from_str_radix(from, 16).ok()?;
    let flags = flags.trim();
    if flags.starts_with("tr strt") || flags.starts_with("tr end") {
        return Some(Line::Edge);
    }
    Some(Line::Branch { cpu, ns: ns(time.trim())?, from, to })
}

fn time_conv(perf_data: &Path) -> Result<TimeConv> {
    let path = if perf_data.is_dir() { perf_data.join("data") } else { perf_data.to_owned() };
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    pt_merger::side_band::TimeConv::find_in_merged(&bytes).with_context(|| path.display().to_string())
}

pub fn judge(capture: &Capture, perf: &str, perf_data: &Path, symfs: Option<&Path>) -> Result<Judgement> {
    let conv = time_conv(perf_data)?;
    let expected: Vec<Vec<Expected>> =
        (0..capture.walk.cpus.len()).map(|cpu| capture.expected(cpu)).collect();
    let injected = &capture.aux.injected;
    let mut comparers: Vec<Comparer> =
        expected.iter().enumerate().map(|(cpu, list)| Comparer::new(cpu, list, injected)).collect();
    let mut judgement = Judgement::default();
    let mut time_errors = Vec::new();
    let mut reported = vec![false; injected.len()];

    let mut command = Command::new(perf);
    command.args(["script", "--itrace=be", "--ns", "-F", "cpu,time,ip,addr,flags", "-i"]).arg(perf_data);
    if let Some(symfs) = symfs {
        command.arg("--symfs").arg(symfs);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("{perf}: cannot be run"))?;
    let out = child.stdout.take().context("no output of perf")?;
    for line in BufReader::with_capacity(1 << 20, out).lines() {
        let line = line.context("output of perf")?;
        match parse(&line) {
            Some(Line::Branch { cpu, ns, from, to }) if cpu < comparers.len() => {
                if let Some(log) = comparers[cpu].next(from, to) {
                    time_errors.push(ns.wrapping_sub(conv.ns(log.tsc)) as i64);
                }
            }
            Some(Line::Error { cpu, ns }) => {
                judgement.errors += 1;
                // perf gives an error the last time that it knew.
                let slack = 10_000;
                let covers = |i: &crate::compare::Injected| {
                    i.cpu == cpu
                        && ns + slack >= conv.ns(i.tsc_start)
                        && ns <= conv.ns(i.tsc_end).saturating_add(slack)
                };
                match injected.iter().position(covers) {
                    Some(index) => reported[index] = true,
                    None => {
                        judgement.unexpected_errors += 1;
                        if judgement.examples.len() < 5 {
                            judgement.examples.push(line.trim().to_owned());
                        }
                    }
                }
            }
            Some(_) => {}
            None if line.trim().is_empty() => {}
            None if judgement.examples.len() < 5 => {
                judgement.examples.push(format!("not understood: {line}"))
            }
            None => {}
        }
    }
    let status = child.wait().context("perf")?;
    ensure!(status.success(), "{perf} script ended with {status}");
    judgement.branches = comparers.into_iter().map(Comparer::finish).collect();
    // Losses from a full or overwritten buffer are reported by AUX records, not by the decoder.
    let silent = injected.iter().zip(&reported).filter(|(i, &reported)| i.kind == "overflow" && !reported);
    judgement.silent_losses = silent.count() as u64;
    time_errors.sort_unstable();
    if let Some(last) = time_errors.len().checked_sub(1) {
        judgement.time_error_ns = [0, 10, 500, 990, 1000].map(|p| time_errors[last * p / 1000]);
    }
    Ok(judgement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perfs_lines_are_understood() {
        let line = "[001]    66.010354706:   return                           4015bb =>           401af4";
        let branch = Line::Branch { cpu: 1, ns: 66_010_354_706, from: 0x4015bb, to: 0x401af4 };
        assert_eq!(parse(line), Some(branch));
        let start = "[000]    66.010354700:   tr strt                               0 =>           4015b1";
        assert_eq!(parse(start), Some(Line::Edge));
        let error = " instruction trace error type 1 time 66.012000001 cpu 1 pid 5 tid 5 ip 0 code 5: Failed";
        assert_eq!(parse(error), Some(Line::Error { cpu: 1, ns: 66_012_000_001 }));
        assert_eq!(parse("some other line"), None);
    }
}
