// loads the part that changes anew when the feed says so, or the slider moved; never below a field in use
const slider = document.querySelector("input[name=scrub]");
let newest = 0;
async function show(address) {
  const mine = ++newest, answer = await fetch(address);
  if (!answer.ok || mine !== newest) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const now = document.getElementById("live"), next = page.getElementById("live"), in_use = document.activeElement;
  if (mine !== newest || (now.contains(in_use) && /^(SELECT|INPUT)$/.test(in_use.tagName))) return;
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
  show(address);
});
const feed = document.querySelector("[data-feed]").dataset.feed;
if (feed) new EventSource(feed).onmessage = () => show(location.href);
