// SPDX-License-Identifier: GPL-2.0-only
//! pt-encode: encodes a log of the observer as Intel PT.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{ensure, Context, Result};
use clap::Parser;
use pt_encoder::{encode, Chunk, Injected, Options};
use serde::Serialize;

/// Encode a log of the observer as Intel PT: a file of packets per CPU, and aux.json.
#[derive(Parser)]
#[command(name = "pt-encode", version)]
struct Args {
    log: PathBuf,
    /// Directory for the results; made if it does not exist
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    options: Options,
}

#[derive(Serialize)]
struct Cpu {
    cpu: usize,
    file: String,
    chunks: Vec<Chunk>,
}

#[derive(Serialize)]
struct Aux {
    version: u32,
    tsc_khz: u64,
    options: Options,
    config: u64,
    cpus: Vec<Cpu>,
    injected: Vec<Injected>,
    stats: serde_json::Value,
}

fn run(args: Args) -> Result<()> {
    let name = args.log.display().to_string();
    let file = File::open(&args.log).with_context(|| name.clone())?;
    let reader =
        pt_log::Reader::new(BufReader::with_capacity(1 << 20, file)).with_context(|| name.clone())?;
    let walk = pt_walk::walk(reader).with_context(|| name.clone())?;
    ensure!(walk.report.is_consistent(), "{name}: the code does not allow this log (see pt-walk check)");
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;

    let mut aux = Aux {
        version: 1,
        tsc_khz: walk.tsc_khz,
        config: args.options.config(),
        options: args.options,
        cpus: Vec::new(),
        injected: Vec::new(),
        stats: serde_json::Value::Null,
    };
    let mut packets = std::collections::BTreeMap::<&str, u64>::new();
    let mut bytes = 0;
    for (cpu, events) in walk.cpus.iter().enumerate() {
        let window = aux.options.only.as_ref().map(|ticks| pt_events::only(events, ticks));
        let encoded = encode(cpu, window.as_ref().unwrap_or(events), &aux.options);
        let file = format!("cpu{cpu}.aux");
        let path = args.out.join(&file);
        fs::write(&path, &encoded.bytes).with_context(|| path.display().to_string())?;
        bytes += encoded.bytes.len() as u64;
        for (name, n) in encoded.packets {
            *packets.entry(name).or_default() += n;
        }
        aux.injected.extend(encoded.injected);
        aux.cpus.push(Cpu { cpu, file, chunks: encoded.chunks });
    }
    let per_million = (bytes * 1_000_000).checked_div(walk.report.instructions);
    aux.stats = serde_json::json!({
        "instructions": walk.report.instructions,
        "branches": walk.report.branches(),
        "bytes": bytes,
        "bytes_per_million_instructions": per_million,
        "packets": packets,
    });
    let path = args.out.join("aux.json");
    let text = serde_json::to_string_pretty(&aux)?;
    fs::write(&path, text + "\n").with_context(|| path.display().to_string())?;
    println!(
        "{} instructions, {} branches, {bytes} bytes ({} per million instructions)",
        walk.report.instructions,
        walk.report.branches(),
        per_million.unwrap_or(0),
    );
    Ok(())
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pt-encode: error: {error:#}");
            ExitCode::from(2)
        }
    }
}
