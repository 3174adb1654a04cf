// SPDX-License-Identifier: GPL-2.0-only
//! The arguments, and what each command does with them.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use nsight_decode::calls::{self, Builder};
use nsight_decode::edges::{self, Sink};
use nsight_decode::error::{Error, Result};
use nsight_decode::perfdata::Times;
use nsight_decode::pipeline::{self, Counts, Options, SLICE};
use nsight_decode::thread_pool::ThreadPool;
use nsight_decode::windows::Windows;

use crate::numbers::grouped;
use crate::source::{Opened, Source};
use crate::{info, lost};

/// Decode the Intel PT of a perf.data file: calls with begin, duration and nesting.
#[derive(Parser)]
#[command(
    version,
    flatten_help = true,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done (losses are on stderr), 1 a bug, 2 usage, 3 the input cannot be used, \
                  4 the input has no Intel PT that can be decoded, 5 output or memory."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the calls as Parquet, and what was lost, into a directory.
    Calls {
        #[command(flatten)]
        decode: Decode,
        /// Directory for the tables; made if it does not exist.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Write calls, returns and other transfers as an edge file.
    Edges {
        #[command(flatten)]
        decode: Decode,
        /// The edge file.
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
    },
    /// Make the tables of calls from an edge file, of this program or through perf.
    Build {
        /// An edge file.
        edges: PathBuf,
        /// Directory for the tables; made if it does not exist.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Tell what was recorded, how, and what decoding would need; decodes nothing.
    Info {
        #[command(flatten)]
        source: Source,
        /// Print one JSON object: the buffers with their sizes and times.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
struct Decode {
    #[command(flatten)]
    source: Source,
    /// Decode this interval only: perf's clock in seconds (40.78-40.79) or ns, or @FILE with one a line.
    /// May be given more than once.
    #[arg(long, value_name = "A-B[:CPU]")]
    time: Vec<String>,
    /// Threads that decode and write, each with some 50 MB [default: one a CPU, at most 8].
    #[arg(short, long, value_name = "N")]
    jobs: Option<usize>,
    /// Print neither progress nor losses.
    #[arg(short, long)]
    quiet: bool,
    /// Bytes of trace that are decoded at a time, for tests.
    #[arg(long, hide = true, default_value_t = SLICE)]
    slice_bytes: usize,
    /// Decode blocks and make nothing of them, for benchmarks.
    #[arg(long, hide = true)]
    bare: bool,
}

pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Calls { decode, out } => {
            let quiet = decode.quiet;
            // Fail here, before hours of decoding.
            let pool = decode.pool();
            let mut builder = Builder::new(&out, pool.clone())?;
            let (opened, counts) = decoded(decode, true, &pool, &mut builder)?;
            builder.account.losses = lost::of(&opened, &counts);
            let account = builder.finish()?;
            if !quiet {
                eprintln!("{} calls in {}", grouped(account.rows), out.display());
                print_counts(&counts);
                lost::print(&account.losses);
            }
            // The program ends here: nothing needs its memory to be freed.
            std::mem::forget(opened);
            Ok(())
        }
        Command::Edges { decode, output } => {
            let quiet = decode.quiet;
            let (pool, mut writer) = (decode.pool(), edges::Writer::create(&output)?);
            let (opened, counts) = decoded(decode, false, &pool, &mut writer)?;
            writer.finish()?;
            if !quiet {
                eprintln!("{} edges in {}", grouped(counts.edges), output.display());
                print_counts(&counts);
                lost::print(&lost::of(&opened, &counts));
            }
            std::mem::forget(opened);
            Ok(())
        }
        Command::Build { edges, out } => {
            let account = calls::build(&edges, &out, Arc::new(ThreadPool::new(1)))?;
            eprintln!("{} calls in {}", grouped(account.rows), out.display());
            lost::print(&account.losses);
            Ok(())
        }
        Command::Info { source, json } => info::print(&source.open()?, json),
    }
}

fn print_counts(counts: &Counts) {
    let (insns, edges) = (grouped(counts.insns), grouped(counts.edges));
    eprintln!("{insns} instructions, {edges} edges, {:.1} MB of Intel PT", counts.bytes as f64 / 1e6);
}

impl Decode {
    fn pool(&self) -> Arc<ThreadPool> {
        let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        ThreadPool::new(self.jobs.unwrap_or(all.min(8)).clamp(1, 1024)).into()
    }
}

fn decoded(
    decode: Decode,
    with_context: bool,
    pool: &ThreadPool,
    sink: &mut dyn Sink,
) -> Result<(Opened, Counts)> {
    let windows = Windows::parse(&decode.time)?;
    let opened = decode.source.open()?;
    if !windows.is_all() && opened.recording.config.times != Times::Clock {
        let why = "--time: the recording does not tell perf's clock";
        return Err(Error::usage(why, "decode all of it; nsight-decode info tells its times"));
    }
    let options = Options {
        windows,
        slice: decode.slice_bytes,
        with_context,
        progress: !decode.quiet,
        bare: decode.bare,
    };
    let counts = pipeline::run(&opened.recording, &opened.code, &options, pool, sink)?;
    Ok((opened, counts))
}
