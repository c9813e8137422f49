// Which pipeline the page shows, if the pod has several: chosen in the header, kept in the address as `?pipeline=`.
import { byId } from "./elements.js";

const REFRESH_INTERVAL = 5_000;

let chosen = new URLSearchParams(location.search).get("pipeline");

/** The path with the chosen pipeline. */
export const ofPipeline = (path) => (chosen === null ? path : `${path}?pipeline=${encodeURIComponent(chosen)}`);

/** Shows the selector if there is more than one pipeline. */
export async function initPipelines() {
  const list = await getPipelines();
  if (list.length < 2) return;
  if (!list.some(({ pipeline }) => pipeline === chosen)) chosen = list[0].pipeline;
  const select = byId("pipelines");
  select.replaceChildren(...list.map(({ pipeline }) => new Option(pipeline, pipeline, false, pipeline === chosen)));
  // A new page: no figure of another pipeline stays on it.
  select.addEventListener("change", () => location.assign(`?pipeline=${encodeURIComponent(select.value)}`));
  byId("pipeline").hidden = true;
  select.hidden = false;
  showStates(select, list);
  setInterval(() => getPipelines().then((list) => showStates(select, list)).catch(() => {}), REFRESH_INTERVAL);
}

async function getPipelines() {
  const response = await fetch("/api/pipelines", { cache: "no-store", signal: AbortSignal.timeout(5_000) });
  return response.json();
}

/** Marks pipelines with a problem in the list. */
function showStates(select, list) {
  for (const { pipeline, healthy, ready } of list) {
    const option = [...select.options].find((option) => option.value === pipeline);
    if (option) option.text = healthy === false || !ready ? `${pipeline} (not healthy)` : pipeline;
  }
}
