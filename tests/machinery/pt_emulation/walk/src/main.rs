// SPDX-License-Identifier: GPL-2.0-only
//! pt-walk: shows the contents of an observer log.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use pt_events::Kind;
use pt_walk::Walk;

/// Look into a log of the observer.
#[derive(Parser)]
#[command(name = "pt-walk", version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Hold every transition against the code; exit code 1 when one contradicts it
    Check { log: PathBuf },
    /// Every branch: cpu, tsc, kind, from, to
    Branches { log: PathBuf },
    /// Executed bytes: address space (0: kernel), address, how many
    Code { log: PathBuf },
    /// Marks and watches: cpu, tsc, kind, then id, rdi, rsi or address, rdi, rsi, rdx
    Marks { log: PathBuf },
    /// Times at which control came to addresses: cpu, address, tsc
    Entries {
        log: PathBuf,
        /// May be repeated
        #[arg(long = "function", value_parser = address, required = true)]
        functions: Vec<u64>,
    },
    /// When functions ran, without the time of other tasks: cpu, function, task, start, end
    Intervals {
        log: PathBuf,
        /// Address of __switch_to_asm, which must have been watched
        #[arg(long, value_parser = address)]
        switch: u64,
        /// Address of a function; may be repeated
        #[arg(long, value_parser = address, required = true)]
        function: Vec<u64>,
    },
}

fn address(text: &str) -> Result<u64, std::num::ParseIntError> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
}

fn load(path: &Path) -> Result<Walk> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let reader = pt_log::Reader::new(BufReader::with_capacity(1 << 20, file));
    reader.and_then(pt_walk::walk).with_context(|| path.display().to_string())
}

fn branches(walk: &Walk, out: &mut impl Write) -> io::Result<()> {
    for (cpu, events) in walk.cpus.iter().enumerate() {
        for event in events {
            if let Some((from, to)) = event.kind.ends() {
                let kind = event.kind.name();
                writeln!(out, "{cpu}\t{}\t{kind}\t{from:#x}\t{to:#x}", event.tsc)?;
            }
        }
    }
    Ok(())
}

fn marks(walk: &Walk, out: &mut impl Write) -> io::Result<()> {
    for (cpu, events) in walk.cpus.iter().enumerate() {
        for event in events {
            let tsc = event.tsc;
            match event.kind {
                Kind::Mark { id, rdi, rsi } => writeln!(out, "{cpu}\t{tsc}\tmark\t{id}\t{rdi:#x}\t{rsi:#x}")?,
                Kind::Watch { ip, rdi, rsi, rdx } => {
                    writeln!(out, "{cpu}\t{tsc}\twatch\t{ip:#x}\t{rdi:#x}\t{rsi:#x}\t{rdx:#x}")?
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn entries(walk: &Walk, functions: &[u64], out: &mut impl Write) -> io::Result<()> {
    for (cpu, events) in walk.cpus.iter().enumerate() {
        for event in events {
            match event.kind.ends() {
                Some((_, to)) if functions.contains(&to) => writeln!(out, "{cpu}\t{to:#x}\t{}", event.tsc)?,
                _ => {}
            }
        }
    }
    Ok(())
}

fn run(args: &Args) -> Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout().lock());
    match &args.what {
        What::Check { log } => {
            let report = load(log)?.report;
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
            out.flush()?;
            return Ok(ExitCode::from(u8::from(!report.is_consistent())));
        }
        What::Branches { log } => branches(&load(log)?, &mut out)?,
        What::Marks { log } => marks(&load(log)?, &mut out)?,
        What::Entries { log, functions } => entries(&load(log)?, functions, &mut out)?,
        What::Intervals { log, switch, function } => {
            for (cpu, events) in load(log)?.cpus.iter().enumerate() {
                for i in pt_walk::intervals::intervals(events, *switch, function) {
                    let (start, end) = (i.start, i.end);
                    writeln!(out, "{cpu}\t{:#x}\t{:#x}\t{start}\t{end}", i.function, i.task)?;
                }
            }
        }
        What::Code { log } => {
            for (space, address, n) in load(log)?.code.runs() {
                writeln!(out, "{space:#x}\t{address:#x}\t{n}")?;
            }
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        // The reader closed the pipe on purpose.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pt-walk: error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
