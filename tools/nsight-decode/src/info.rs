// SPDX-License-Identifier: GPL-2.0-only
//! Reports the contents of a recording without decoding it.

use nsight_decode::error::Result;
use nsight_decode::packets::index::runs;
use nsight_decode::perfdata::layout::feature;
use nsight_decode::perfdata::{Chunk, Owner, Times};
use serde_json::{json, Value};

use crate::numbers::{grouped, seconds};
use crate::source::Opened;

fn line(name: &str, value: impl std::fmt::Display) {
    println!("{name:<16}{value}");
}

pub fn print(opened: &Opened, as_json: bool) -> Result<()> {
    if as_json {
        println!("{:#}", json(opened));
        return Ok(());
    }
    let Opened { recording, code } = opened;
    let (file, info, config) = (&recording.file, &recording.info, &recording.config);
    let text = |bit| file.text(bit).unwrap_or_else(|| "unknown".into());
    line("file", format_args!("{}{}", file.path.display(), if file.cut { " (cut)" } else { "" }));
    line("host", text(feature::HOSTNAME));
    line("kernel", text(feature::OSRELEASE));
    line("cpu", text(feature::CPUID));
    let traced = match (config.kernel, config.user) {
        (true, true) => "kernel and user code",
        (true, false) => "kernel code",
        (false, true) => "user code",
        (false, false) => "nothing",
    };
    line("traced", traced);
    let times = match config.times {
        Times::Clock => "ns of perf's clock",
        Times::Ticks => "ticks of TSC: how perf's clock relates is not told",
        Times::Absent => "none: recorded without TSC packets",
    };
    line("times", times);
    let timing = match (config.cyc, config.mtc) {
        (true, Some(period)) => format!("TSC, CYC, MTC (period {period})"),
        (true, None) => "TSC, CYC".into(),
        (false, Some(period)) => format!("TSC, MTC (period {period})"),
        (false, None) => "TSC: times are known at PSBs only".into(),
    };
    line("timing", timing);
    line("returns", if config.ret_compression { "compressed" } else { "not compressed" });
    let switches = recording.side.switches.len();
    line("switches", format_args!("{} records (kind {})", grouped(switches as u64), info.have_sched_switch));
    line("text pokes", recording.side.pokes.len());
    line("kernel code", if code.kernel.is_known() { "there" } else { "missing: record with --kcore" });
    line("losses", format_args!("{} records tell of some", recording.side.losses.len()));
    for buffer in buffers(opened) {
        let name = match buffer.owner {
            Owner::Cpu(cpu) => format!("cpu {cpu}"),
            Owner::Thread(tid) => format!("thread {tid}"),
        };
        let times = buffer.times.map_or("no PSB: nothing can be decoded".into(), |(begin, end)| {
            format!("{} to {} s", seconds(begin), seconds(end))
        });
        let (bytes, psbs, pieces) = (grouped(buffer.bytes as u64), buffer.psbs, buffer.pieces);
        line(&name, format_args!("{bytes} bytes, {psbs} PSBs, {pieces} pieces, {times}"));
    }
    Ok(())
}

/// One buffer that perf recorded. Times are in ns of perf's clock: of the first PSB, and when the last data were taken.
struct Buffer {
    owner: Owner,
    bytes: usize,
    psbs: usize,
    pieces: usize,
    times: Option<(u64, u64)>,
}

fn buffers(opened: &Opened) -> Vec<Buffer> {
    let recording = &opened.recording;
    let conv = &recording.info.conv;
    let buffer = |(&owner, chunks): (&Owner, &Vec<Chunk>)| {
        let runs = runs(chunks, recording);
        let first = runs.iter().find_map(|r| r.psbs.first());
        let last = chunks.last().map_or(0, |c| c.reference);
        Buffer {
            owner,
            bytes: runs.iter().map(|r| r.len).sum(),
            psbs: runs.iter().map(|r| r.psbs.len()).sum(),
            pieces: runs.len(),
            times: first.map(|p| (conv.ns(p.tsc), conv.ns(last.max(p.tsc)))),
        }
    };
    recording.streams.iter().map(buffer).collect()
}

fn json(opened: &Opened) -> Value {
    let of = |b: &Buffer| {
        let (cpu, tid) = match b.owner {
            Owner::Cpu(cpu) => (cpu, -1),
            Owner::Thread(tid) => (-1, tid),
        };
        json!({
            "cpu": cpu,
            "tid": tid,
            "bytes": b.bytes,
            "psbs": b.psbs,
            "begin_ns": b.times.map(|t| t.0),
            "end_ns": b.times.map(|t| t.1),
        })
    };
    let clock = match opened.recording.config.times {
        Times::Clock => "perf",
        Times::Ticks => "tsc",
        Times::Absent => "none",
    };
    json!({"version": 1, "clock": clock, "buffers": buffers(opened).iter().map(of).collect::<Vec<_>>()})
}
