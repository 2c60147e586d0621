#include "server/http/cache_page.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "base/sha256.h"
#include "base/strings.h"

namespace quire::server {
namespace {

// Text from the server enters the document by textContent and fillText alone.
constexpr std::string_view kPage = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Quire: KV cache</title>
<style>
body { margin: 16px; font: 13px/1.4 system-ui, sans-serif; color: #222; background: #fff; }
h1 { font-size: 16px; margin: 0 0 4px; } h2 { font-size: 13px; margin: 14px 0 4px; }
canvas { display: block; width: 100%; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 2px 12px 2px 0; border-bottom: 1px solid #e4e4e4; }
td { max-width: 28em; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.n { text-align: right; } .key { display: inline-block; width: 10px; height: 10px; }
#state { color: #666; } #legend span { margin-right: 4px; } #legend b { font-weight: 400;
margin-right: 14px; } #tip { min-height: 1.4em; color: #444; } #ask[hidden] { display: none; }
</style>
<h1>KV cache</h1>
<div id="state">loading</div>
<form id="ask" hidden><label>Token of an operator:
<input id="token" type="password" autocomplete="off"></label> <button>Show</button></form>
<div id="legend"></div>
<h2>Blocks, by id</h2>
<canvas id="map" height="180"></canvas>
<h2>Prefix tree: a bar is a run of blocks, and what follows it is under it</h2>
<canvas id="tree" height="200"></canvas>
<div id="tip"></div>
<h2>Named prefixes</h2>
<table><thead><tr><th>prefix<th>tenant<th class="n">tokens<th class="n">blocks<th class="n">hits
<th class="n">saved tokens<th>users now<th class="n">ends in</tr></thead><tbody id="list"></tbody>
</table>
<script>
'use strict';
const colors = {free: '#eceff1', cached: '#90caf9', held: '#ffb74d', shared: '#e65100',
                pinned: '#7e57c2'};
const by = id => document.getElementById(id);
let token = '', boxes = [], data = null;
for (const [name, color] of Object.entries(colors)) {
  const key = document.createElement('span'), text = document.createElement('b');
  key.className = 'key';
  key.style.background = color;
  text.textContent = name;
  by('legend').append(key, text);
}
const count = n => n.toLocaleString('en');
const who = node => (node.tenant || 'all callers') + (node.part ? ' / ' + node.part : '');
const time = s => s >= 3600 ? Math.floor(s / 3600) + 'h' + Math.floor(s % 3600 / 60) + 'm'
    : s >= 60 ? Math.floor(s / 60) + 'm' + s % 60 + 's' : s + 's';

function open(canvas, height) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + 'px';
  canvas.width = width * scale;
  canvas.height = height * scale;
  const out = canvas.getContext('2d');
  out.scale(scale, scale);
  return [out, width];
}

// A cell is filled from below by its blocks that are held, cached and free, in this order.
function drawMap(cells) {
  const width = by('map').clientWidth;
  const size = Math.max(4, Math.min(16, Math.floor(Math.sqrt(width * 180 / cells.length))));
  const columns = Math.max(1, Math.floor(width / size));
  const [out] = open(by('map'), Math.ceil(cells.length / columns) * size);
  cells.forEach(([free, cached, held, pinned, shared], i) => {
    const x = i % columns * size, top = Math.floor(i / columns) * size, full = size - 1;
    const total = free + cached + held || 1;
    let y = top + full;
    const both = Math.min(pinned, held), more = Math.min(shared, held - both);
    for (const [name, n] of [['pinned', both], ['shared', more], ['held', held - both - more],
                             ['cached', cached], ['free', free]]) {
      const h = full * n / total;
      out.fillStyle = colors[name];
      out.fillRect(x, y - h, full, h);
      y -= h;
    }
  });
}

// A node is as wide as the blocks of the longest paths through it.
function drawTree(nodes) {
  const children = nodes.map(() => []), roots = [];
  nodes.forEach((node, i) => (node.parent < 0 ? roots : children[node.parent]).push(i));
  const weight = nodes.map(node => Math.sqrt(node.blocks)), depth = nodes.map(() => 0);
  let deepest = 0;
  nodes.forEach((node, i) => {
    if (node.parent >= 0) depth[i] = depth[node.parent] + 1;
    deepest = Math.max(deepest, depth[i]);
  });
  for (let i = nodes.length; i-- > 0;) {
    weight[i] = Math.max(weight[i], children[i].reduce((sum, c) => sum + weight[c], 0));
  }
  const row = 22, [out, width] = open(by('tree'), Math.max(1, deepest + 1) * row);
  boxes = [];
  out.font = '11px system-ui, sans-serif';
  const place = (list, x, scale) => {
    for (const i of list) {
      const node = nodes[i], w = weight[i] * scale, y = depth[i] * row;
      out.fillStyle = node.pinned ? colors.pinned : node.sequences > 1 ? colors.shared
          : node.held ? colors.held : colors.cached;
      out.fillRect(x, y, Math.max(1, w - 1), row - 1);
      if (w > 40) {
        out.fillStyle = node.pinned || node.sequences > 1 ? '#fff' : '#222';
        out.save();
        out.beginPath();
        out.rect(x, y, w - 4, row);
        out.clip();
        out.fillText(label(node), x + 4, y + 14);
        out.restore();
      }
      boxes.push([x, y, w, row, node]);
      place(children[i], x, scale);
      x += w;
    }
  };
  const total = roots.reduce((sum, i) => sum + weight[i], 0);
  place(roots, 0, total > 0 ? width / total : 0);
}
const label = node => [node.pins.join(', ') || who(node), count(node.tokens) + ' tokens',
    node.sequences ? node.sequences + ' running' : '',
    node.hidden ? node.hidden + ' more' : ''].filter(text => text).join('  ');

function drawList(prefixes) {
  by('list').replaceChildren(...prefixes.map(prefix => {
    const row = document.createElement('tr');
    const users = prefix.users.map(u => (u.tenant || 'all callers') + ' ' + u.sequences);
    [[prefix.display_name || prefix.name], [prefix.tenant || 'all callers'],
     [count(prefix.tokens), 1], [count(prefix.blocks), 1], [count(prefix.hits), 1],
     [count(prefix.saved), 1], [users.join(', ') || '-'], [time(prefix.expires_in), 1],
    ].forEach(([text, number]) => {
      const cell = document.createElement('td');
      cell.textContent = text;
      if (number) cell.className = 'n';
      row.append(cell);
    });
    return row;
  }));
}

function draw() {
  const sums = [0, 0, 0, 0, 0];
  for (const cell of data.cells) cell.forEach((n, i) => { sums[i] += n; });
  const part = n => count(n) + ' (' + Math.round(100 * n / data.num_blocks) + '%)';
  by('state').textContent = count(data.num_blocks) + ' blocks of ' + data.block_size +
      ' tokens: ' + part(sums[0]) + ' free, ' + part(sums[1]) + ' cached, ' + part(sums[2]) +
      ' held; of these ' + count(sums[3]) + ' pinned, ' + count(sums[4]) + ' shared. ' +
      count(data.num_prefixes) + ' prefixes, ' + count(data.num_sessions) + ' sessions' +
      (data.num_hidden_roots ? ', ' + count(data.num_hidden_roots) + ' trees not shown' : '');
  drawMap(data.cells);
  drawTree(data.nodes);
  drawList(data.prefixes);
}

async function poll() {
  let next = 1000;
  try {
    const headers = token ? {Authorization: 'Bearer ' + token} : {};
    const answer = await fetch('/debug/cache.json', {headers, cache: 'no-store'});
    by('ask').hidden = answer.status !== 401;
    if (answer.ok) {
      data = await answer.json();
      draw();
    } else {
      by('state').textContent = await answer.text();
      if (answer.status === 401) return;
    }
  } catch (error) {
    by('state').textContent = 'the server does not answer';
  }
  setTimeout(poll, next);
}
by('ask').addEventListener('submit', event => {
  event.preventDefault();
  token = by('token').value;
  poll();
});
by('tree').addEventListener('mousemove', event => {
  const hit = boxes.find(([x, y, w, h]) => event.offsetX >= x && event.offsetX < x + w &&
                                           event.offsetY >= y && event.offsetY < y + h);
  by('tip').textContent = hit ? who(hit[4]) + ': ' + label(hit[4]) + '; ' +
      count(hit[4].blocks) + ' blocks, ' + count(hit[4].held) + ' held, ' +
      count(hit[4].pinned) + ' pinned' : '';
});
window.addEventListener('resize', () => { if (data) draw(); });
poll();
</script>
</html>
)html";

// Returns the source that lets the browser run what stands between the two tags.
std::string SourceOf(std::string_view begin, std::string_view end) {
  const size_t first = kPage.find(begin) + begin.size();
  base::Sha256 sum;
  sum.Add(kPage.substr(first, kPage.find(end) - first));
  const base::Sha256Digest digest = sum.Finish();
  return absl::StrCat("'sha256-", absl::Base64Escape(std::string(digest.begin(), digest.end())),
                      "'");
}

}  // namespace

std::string_view CachePage() { return kPage; }

const std::string& CachePageHeaders() {
  static const std::string headers = absl::StrCat(
      "Content-Security-Policy: default-src 'none'; script-src ", SourceOf("<script>", "</script>"),
      "; style-src ", SourceOf("<style>", "</style>"),
      "; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
      "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n");
  return headers;
}

}  // namespace quire::server
