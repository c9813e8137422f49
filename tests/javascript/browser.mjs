// A real browser for tests: Debian's Chromium, with everything off that would reach for the network.
import { chromium } from "playwright-core";

export function browser() {
  return chromium.launch({
    executablePath: process.env.CHROMIUM,
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync"],
  });
}
