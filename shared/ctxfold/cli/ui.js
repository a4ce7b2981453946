// loads the part that changes anew when the feed says so, or the slider moved; never below a field in use
const slider = document.querySelector("input[name=scrub]");
let wanted = "", busy = false;
async function show(address) {
  wanted = address;  // of several that come while one is loaded, the newest is next
  if (busy) return;
  busy = true;
  for (let asked; asked = wanted;) {
    wanted = "";
    await load(asked).catch(() => {});  // the server is gone: what is shown stays
  }
  busy = false;
}
async function load(address) {
  const answer = await fetch(address);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const now = document.getElementById("live"), next = page.getElementById("live"), in_use = document.activeElement;
  if (now.contains(in_use) && /^(SELECT|INPUT)$/.test(in_use.tagName)) return;
  now.replaceWith(document.importNode(next, true));
  if (slider) {
    const moved = page.querySelector("input[name=scrub]");
    slider.max = moved.max;
    if (document.activeElement !== slider || !new URL(location).searchParams.has("turn")) slider.value = moved.value;
  }
}
if (slider) slider.addEventListener("input", () => {
  const address = new URL(location);
  if (slider.value === slider.max) address.searchParams.delete("turn"); else address.searchParams.set("turn", slider.value);
  history.replaceState(null, "", address);
  show(address.href);
});
const feed = document.querySelector("[data-feed]").dataset.feed;
let source;
function follow() {  // only while it is seen: a browser opens six connections to a server, and no more
  source?.close();
  if (!feed || document.hidden) return;
  source = new EventSource(feed);
  source.onmessage = () => show(location.href);
}
document.addEventListener("visibilitychange", follow);
follow();
