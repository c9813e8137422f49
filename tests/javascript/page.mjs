// Opens the dashboard of a pod in a real browser, and reads its status.
export const SOON = 60_000;

/** Opens the dashboard of a pod and collects the errors of the page. */
export async function open(chromium, pod, options = {}) {
  const context = await chromium.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(SOON);
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(error.message));
  // An unreachable pod is not an error of the page.
  page.on("console", (message) => {
    if (message.type() === "error" && !/ERR_|Failed to load resource/.test(message.text())) page.errors.push(message.text());
  });
  await page.goto(pod.url);
  return page;
}

export const close = (page) => page.context().close();
export const getStatus = async (pod) => (await fetch(`${pod.url}api/status`)).json();

/** Waits until the status of a pod satisfies `is`, and returns it. */
export async function waitForStatus(pod, what, is) {
  const until = Date.now() + SOON;
  let last;
  while (Date.now() < until) {
    last = await getStatus(pod).catch((error) => error.message);
    if (typeof last === "object" && is(last)) return last;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`waited for ${what}; last: ${JSON.stringify(last)}`);
}

export const hasLeaderAndThreePods = (status) => status.leader && status.pods.filter((pod) => !pod.silent).length === 3;
export const isStreaming = ({ checkpoint }) => checkpoint?.phase === "stream";
