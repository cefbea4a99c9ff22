// Makes one tree like another and leaves alone what is the same, so that focus, selection and scrolling stay.
//
// `data-keep`: the element's content is not the server's. `id` tells which child is which.

const OURS = new Set(["data-seen", "data-ahead", "open"]);

export function morph(old, fresh) {
  attributes(old, fresh);
  if (old.hasAttribute("data-keep")) return;
  children(old, fresh);
}

function attributes(old, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !OURS.has(name)) old.removeAttribute(name);
  }
}

function children(old, fresh) {
  const known = new Map([...old.children].filter((each) => each.id).map((each) => [each.id, each]));
  let here = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const named = wanted.id ? known.get(wanted.id) : null;
    if (named && named !== here) old.insertBefore(named, here);
    const found = named ?? (here && alike(here, wanted) ? here : null);
    if (!found) {
      old.insertBefore(document.importNode(wanted, true), here);
      continue;
    }
    here = found.nextSibling;
    if (found.nodeType === Node.ELEMENT_NODE) morph(found, wanted);
    else if (found.nodeValue !== wanted.nodeValue && !old.matches("time[data-at]")) found.nodeValue = wanted.nodeValue;
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

function alike(one, other) {
  return one.nodeName === other.nodeName && (one.id ?? "") === (other.id ?? "");
}
