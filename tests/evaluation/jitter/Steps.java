// SPDX-License-Identifier: GPL-2.0-only
// Steps that allocate memory, with timestamps in a file for nsight-report --intervals: java Steps.java STEPS FILE

import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;

public class Steps {
	static long sum;

	public static void main(String[] args) throws Exception {
		int steps = Integer.parseInt(args[0]);
		long[] begin = new long[steps], end = new long[steps];
		ArrayDeque<byte[][]> kept = new ArrayDeque<>();
		for (int i = 0; i < steps; i++) {
			begin[i] = System.nanoTime();
			byte[][] made = new byte[64][];
			for (int k = 0; k < made.length; k++)
				made[k] = new byte[256];
			for (int k = 0; k < 30000; k++)
				sum += k ^ i;
			kept.add(made);
			if (kept.size() > 500)
				kept.poll();
			end[i] = System.nanoTime();
			Thread.sleep(0, 200000);
		}
		String thread = Files.readSymbolicLink(Path.of("/proc/thread-self")).getFileName().toString();
		try (PrintWriter out = new PrintWriter(args[1])) {
			out.println("# thread " + thread + "\nname,start,stop");
			for (int i = steps / 4; i < steps; i++) // compiled by now
				out.println("step," + begin[i] + "," + end[i]);
		}
	}
}
