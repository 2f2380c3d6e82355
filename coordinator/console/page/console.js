// The page: who is logged in, the stream of events, and what they make the panels do.

import { byId } from "/dom.js";
import { renewAges } from "/format.js";
import { forgetRates, showStatus } from "/overview.js";
import { Panels } from "/panels.js";
import { read, send } from "/requests.js";

// Lags and snapshots are in no event: they are read again from time to time.
const SLOW_MS = 10_000;
const RETRY_MS = 3_000;

const panels = new Panels(isOver);
let events = null;
let slow = null;
let retry = null;

function connection(state, text) {
  const place = byId("connection");
  place.dataset.state = state;
  if (place.textContent !== text) place.textContent = text;
}

/** Ends the page's session if a refusal says so; returns whether it does. */
function isOver(error) {
  if (!error.isOver) return false;
  loggedOut("The login has ended: log in again.");
  return true;
}

// --- Login and logout ---

function loggedOut(message) {
  leave();
  panels.clear();
  forgetRates();
  byId("panels").hidden = true;
  byId("account").hidden = true;
  byId("login").hidden = false;
  byId("login-error").textContent = message;
  connection("idle", "not logged in");
  byId("username").focus();
}

function loggedIn(session) {
  byId("login").hidden = true;
  byId("login-form").reset();
  chooseWay();
  byId("login-error").textContent = "";
  byId("user").textContent = session.user;
  byId("account").hidden = false;
  byId("panels").hidden = false;
  byId("main").focus();
  panels.refreshAll();
  slow = setInterval(renew, SLOW_MS);
  follow();
}

function renew() {
  renewAges();
  panels.refreshSlow();
}

function credentials() {
  if (byId("by-password").hidden) return { token: byId("token").value };
  return { username: byId("username").value, password: byId("password").value };
}

async function logIn(event) {
  event.preventDefault();
  const button = byId("login-button");
  button.disabled = true;
  byId("login-error").textContent = "";
  try {
    loggedIn(await send("/login", credentials()));
  } catch (error) {
    byId("login-error").textContent = error.message;
  } finally {
    button.disabled = false;
    byId("password").value = "";
    byId("token").value = "";
  }
}

async function logOut() {
  try {
    await send("/logout", {});
    loggedOut("");
  } catch (error) {
    connection("lost", `not logged out: ${error.message}`);
  }
}

function chooseWay() {
  const isToken = document.querySelector('input[name="way"]:checked').value === "token";
  byId("by-token").hidden = !isToken;
  byId("by-password").hidden = isToken;
}

// --- Events ---

function leave() {
  events?.close();
  events = null;
  clearInterval(slow);
  clearTimeout(retry);
}

function follow() {
  events?.close();
  events = new EventSource("/events");
  connection("idle", "connecting");
  events.addEventListener("status", (event) => {
    connection("live", "live");
    showStatus(JSON.parse(event.data));
  });
  events.addEventListener("changed", (event) => panels.changed(JSON.parse(event.data).domains));
  events.addEventListener("ended", () => loggedOut("The login has ended: log in again."));
  events.addEventListener("error", lost);
}

/** The browser tries again by itself unless it was refused: then find out why. */
async function lost() {
  if (events === null) return;
  connection("lost", "no answer: trying again");
  if (events.readyState !== EventSource.CLOSED) return;
  clearTimeout(retry);
  try {
    await read("/session");
    connection("lost", "this replica has no room for another page: trying again");
  } catch (error) {
    if (isOver(error)) return;
  }
  retry = setTimeout(follow, RETRY_MS);
}

async function begin() {
  try {
    loggedIn(await read("/session"));
  } catch (error) {
    loggedOut(error.isOver ? "" : error.message);
  }
}

byId("login-form").addEventListener("submit", logIn);
byId("logout").addEventListener("click", logOut);
for (const each of document.querySelectorAll('input[name="way"]')) {
  each.addEventListener("change", chooseWay);
}
begin();
