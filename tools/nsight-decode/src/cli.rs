// SPDX-License-Identifier: GPL-2.0-only
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use nsight_decode::code::{Code, KernelSource};
use nsight_decode::edges;
use nsight_decode::error::Result;
use nsight_decode::perfdata::Recording;
use nsight_decode::pipeline::{self, Options, SLICE};
use nsight_decode::windows::Windows;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Edges {
        #[command(flatten)]
        decode: Decode,
        #[arg(short, long)]
        output: PathBuf,
    },
}

#[derive(Args)]
struct Decode {
    perf_data: PathBuf,
    #[arg(long, default_value = "/")]
    symfs: PathBuf,
    #[arg(long)]
    kcore: Option<PathBuf>,
    #[arg(long)]
    vmlinux: Option<PathBuf>,
    #[arg(long)]
    time: Vec<String>,
    #[arg(short, long, default_value_t = 0)]
    jobs: usize,
    #[arg(long, hide = true, default_value_t = SLICE)]
    slice_bytes: usize,
}

pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(e.code)
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    let Command::Edges { decode, output } = cli.command;
    let t0 = std::time::Instant::now();
    let recording = Recording::open(&decode.perf_data)?;
    eprintln!("open {:?}", t0.elapsed());
    let source = KernelSource { kcore: decode.kcore, vmlinux: decode.vmlinux };
    let code = Code::new(&recording, &decode.symfs, &source)?;
    eprintln!("code {:?}", t0.elapsed());
    let jobs = if decode.jobs == 0 {
        std::thread::available_parallelism().map_or(1, |n| n.get())
    } else {
        decode.jobs
    };
    let options = Options {
        jobs,
        windows: Windows::parse(&decode.time)?,
        slice: decode.slice_bytes,
        with_context: false,
        progress: true,
    };
    let mut writer = edges::Writer::create(&output)?;
    let counts = pipeline::run(&recording, &code, &options, &mut writer)?;
    writer.finish()?;
    eprintln!("done {:?} {counts:#?} {:?}", t0.elapsed(), code.missing());
    Ok(())
}
