// A pod's page in a real browser, and what its pod tells besides.
export const SOON = 60_000;

/** Opens a pod's page, and notes whatever fails on it. */
export async function open(chromium, pod, options = {}) {
  const context = await chromium.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(SOON);
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(error.message));
  // A pod that is gone is no fault of the page's.
  page.on("console", (message) => {
    if (message.type() === "error" && !/ERR_|Failed to load resource/.test(message.text())) page.errors.push(message.text());
  });
  await page.goto(pod.url);
  return page;
}

export const close = (page) => page.context().close();
export const asked = async (pod) => (await fetch(`${pod.url}api/status`)).json();

/** Waits until a pod tells of a state, and returns what it told. */
export async function told(pod, what, is) {
  const until = Date.now() + SOON;
  let last;
  while (Date.now() < until) {
    last = await asked(pod).catch((error) => error.message);
    if (typeof last === "object" && is(last)) return last;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error(`waited for ${what}; last: ${JSON.stringify(last)}`);
}

export const allThere = (status) => status.leader && status.pods.filter((pod) => !pod.silent).length === 3;
export const following = ({ checkpoint }) => checkpoint?.phase === "stream";
