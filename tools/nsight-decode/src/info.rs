// SPDX-License-Identifier: GPL-2.0-only
//! What a recording holds, without decoding it.

use nsight_decode::error::Result;
use nsight_decode::perfdata::layout::feature;
use nsight_decode::perfdata::Owner;
use nsight_decode::pt::index::runs;

use crate::cli::Opened;
use crate::losses::grouped;

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn line(name: &str, value: impl std::fmt::Display) {
    println!("{name:<16}{value}");
}

pub fn print(opened: &Opened) -> Result<()> {
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
    let timing = match (config.cyc, config.mtc) {
        (true, Some(period)) => format!("TSC, CYC, MTC (period {period})"),
        (true, None) => "TSC, CYC".into(),
        (false, Some(period)) => format!("TSC, MTC (period {period})"),
        (false, None) => "TSC: times are known at PSBs only".into(),
    };
    line("timing", timing);
    line("returns", if config.ret_compression { "compressed" } else { "not compressed" });
    let switches: usize = recording.side.switches.values().map(Vec::len).sum();
    line("switches", format_args!("{} records (kind {})", grouped(switches as u64), info.have_sched_switch));
    line("text pokes", recording.side.pokes.len());
    line("kernel code", if code.kernel.is_known() { "there" } else { "missing: record with --kcore" });
    line("losses", format_args!("{} records tell of some", recording.side.losses.len()));
    for (owner, chunks) in &recording.streams {
        let runs = runs(chunks, recording);
        let bytes: usize = runs.iter().map(|r| r.len).sum();
        let psbs: usize = runs.iter().map(|r| r.psbs.len()).sum();
        let first = runs.iter().find_map(|r| r.psbs.first());
        let last = chunks.last().map_or(0, |c| c.reference);
        let name = match owner {
            Owner::Cpu(cpu) => format!("cpu {cpu}"),
            Owner::Thread(tid) => format!("thread {tid}"),
        };
        let times = first.map_or("no PSB: nothing can be decoded".into(), |p| {
            format!("{} to {} s", seconds(info.conv.ns(p.tsc)), seconds(info.conv.ns(last)))
        });
        line(
            &name,
            format_args!("{} bytes, {psbs} PSBs, {} pieces, {times}", grouped(bytes as u64), runs.len()),
        );
    }
    Ok(())
}
