// SPDX-License-Identifier: GPL-2.0-only
//! Arguments, and what each command does with them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use nsight_decode::calls::{self, Builder};
use nsight_decode::code::{Code, KernelSource};
use nsight_decode::crew::Crew;
use nsight_decode::edges::{self, Sink};
use nsight_decode::error::{Error, Result};
use nsight_decode::perfdata::Recording;
use nsight_decode::pipeline::{self, Counts, Options, SLICE};
use nsight_decode::windows::Windows;

use crate::losses::Losses;
use crate::{info, losses};

/// Decode the Intel PT of a perf.data file: calls with begin, duration and nesting.
#[derive(Parser)]
#[command(
    version,
    flatten_help = true,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done (losses are told on stderr), 1 a bug, 2 usage, 3 the input cannot be used, \
                  4 the input has no Intel PT that can be decoded, 5 output or memory."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the calls as Parquet, and what was lost, into a folder.
    Calls {
        #[command(flatten)]
        decode: Decode,
        /// Folder for the tables; made if it does not exist.
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
        /// Folder for the tables; made if it does not exist.
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
pub struct Source {
    /// A perf.data file, or the directory of perf record --kcore.
    perf_data: PathBuf,
    /// Root of the recorded machine's files: programs, libraries, debug symbols; no link leads out of it
    /// [default: / for what this machine recorded, by its name; no files for others].
    #[arg(long, value_name = "DIR")]
    symfs: Option<PathBuf>,
    /// Folder with kcore and kallsyms [default: PERF_DATA/kcore_dir]; /proc for the same boot.
    #[arg(long, value_name = "DIR")]
    kcore: Option<PathBuf>,
    /// Kernel code of an uncompressed vmlinux; changes that were made at boot are missing.
    #[arg(long, value_name = "FILE")]
    vmlinux: Option<PathBuf>,
}

#[derive(Args)]
struct Decode {
    #[command(flatten)]
    source: Source,
    /// Decode this stretch only: perf's clock in seconds (40.78-40.79) or ns, or @FILE with one a line.
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

pub struct Opened {
    pub recording: Recording,
    pub code: Code,
}

impl Source {
    pub fn open(self) -> Result<Opened> {
        if let Some(folder) = self.symfs.as_ref().filter(|folder| !folder.is_dir()) {
            let hint = "--symfs takes the root of the recorded machine's files";
            return Err(Error::input(folder, "no folder", hint));
        }
        let recording = Recording::open(&self.perf_data)?;
        let root = self.symfs.or_else(|| recording.is_of_this_machine().then(|| PathBuf::from("/")));
        let kernel = KernelSource { kcore: self.kcore, vmlinux: self.vmlinux };
        let code = Code::new(&recording, root.as_deref(), &kernel)?;
        Ok(Opened { recording, code })
    }
}

pub fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Calls { decode, out } => {
            let quiet = decode.quiet;
            // Before hours of decoding.
            let crew = decode.crew();
            let mut builder = Builder::new(&out, crew.clone())?;
            let (opened, counts) = decoded(decode, true, &crew, &mut builder)?;
            let losses = Losses::of(&opened, &counts);
            builder.account.more.extend(losses.json());
            let account = builder.finish()?;
            if !quiet {
                eprintln!("{} calls in {}", losses::grouped(account.rows), out.display());
                losses.print(&counts);
            }
            // The program ends: nobody needs its memory in order.
            std::mem::forget(opened);
            Ok(())
        }
        Command::Edges { decode, output } => {
            let quiet = decode.quiet;
            let (crew, mut writer) = (decode.crew(), edges::Writer::create(&output)?);
            let (opened, counts) = decoded(decode, false, &crew, &mut writer)?;
            writer.finish()?;
            if !quiet {
                eprintln!("{} edges in {}", losses::grouped(counts.edges), output.display());
                Losses::of(&opened, &counts).print(&counts);
            }
            std::mem::forget(opened);
            Ok(())
        }
        Command::Build { edges, out } => {
            let (account, cut) = calls::build(&edges, &out, Arc::new(Crew::new(1)))?;
            eprintln!("{} calls in {}", losses::grouped(account.rows), out.display());
            if cut {
                let name = Path::new(&edges).display();
                eprintln!("warning: {name}: its end is missing; whoever wrote it was killed");
            }
            Ok(())
        }
        Command::Info { source, json } => info::print(&source.open()?, json),
    }
}

impl Decode {
    fn crew(&self) -> Arc<Crew> {
        let all = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Crew::new(self.jobs.unwrap_or(all.min(8)).clamp(1, 1024)).into()
    }
}

fn decoded(decode: Decode, with_context: bool, crew: &Crew, sink: &mut dyn Sink) -> Result<(Opened, Counts)> {
    let windows = Windows::parse(&decode.time)?;
    let opened = decode.source.open()?;
    let options = Options {
        windows,
        slice: decode.slice_bytes,
        with_context,
        progress: !decode.quiet,
        bare: decode.bare,
    };
    let counts = pipeline::run(&opened.recording, &opened.code, &options, crew, sink)?;
    Ok((opened, counts))
}
