"""How pages look: light and dark, on a phone, on paper."""

from __future__ import annotations

_LIGHT = """--text:#1b2330;--page:#f4f6f8;--card:#fff;--soft:#56606d;--line:#d6dce3;--head:#f0f3f6;
--link:#0b57a4;--warn:#8a4b00;--good:#126b34;--bad:#a8201a;--bar:#0072b2"""
_DARK = """--text:#e6e9ee;--page:#0f1216;--card:#181c22;--soft:#a9b1bc;--line:#353c46;
--head:#20252d;--link:#8cc2f5;--warn:#ffc26b;--good:#6fd392;--bad:#ff9d94;--bar:#4aa8e0"""
_PAPER = """--text:#000;--page:#fff;--card:#fff;--soft:#444;--line:#bbb;--head:#eee;--link:#000;
--warn:#000;--good:#000;--bad:#000"""

STYLE = (
    f"\n:root{{color-scheme:light dark;{_LIGHT}}}\n"
    f"@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}\n"
    """*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.5rem 1rem 3rem;color:var(--text);
background:var(--page);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 .25rem}
h2{font-size:1.2rem;line-height:1.3;margin:0 0 .75rem}h3{font-size:1.05rem;margin:1.5rem 0 .5rem}
p{margin:.5rem 0}a{color:var(--link)}
nav ul{display:flex;flex-wrap:wrap;gap:.4rem;padding:0;margin:1rem 0;list-style:none}
nav a{display:block;padding:.25rem .75rem;border:1px solid var(--line);border-radius:1rem;
background:var(--card);text-decoration:none;font-size:.9rem}
nav a:hover{border-color:var(--link)}
.card{background:var(--card);border:1px solid var(--line);border-radius:.75rem;
padding:1.25rem;margin:0 0 1rem}
.soft,caption,figcaption{color:var(--soft)}.warn{color:var(--warn)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,11rem),1fr));gap:.75rem;
margin:0 0 1rem}
.tiles div{border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem;
background:var(--head)}
.tiles dt{color:var(--soft);font-size:.85rem}
.tiles dd{margin:0;font-size:1.35rem;line-height:1.3;font-weight:600}
.tiles dd.small{font-size:.85rem;font-weight:400;color:var(--soft)}
.finished{color:var(--good)}.running{color:var(--link)}.failed,.dead{color:var(--bad)}
.interrupted{color:var(--warn)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));
gap:.5rem 1.5rem;align-items:start}
.charts>figure:first-child:nth-last-child(3){grid-column:1/-1}
.charts>figure:only-child{max-width:40rem}
.charts>figure:first-child:nth-last-child(3){max-width:52rem}
.scroll{overflow-x:auto;margin:.75rem 0}.scroll:focus-visible{outline:2px solid var(--link)}
table{border-collapse:collapse;min-width:50%;font-size:.94rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:.3rem 0;font-size:.9rem;max-width:calc(100vw - 4rem)}
th,td{text-align:left;padding:.35rem 1rem .35rem .5rem;border-bottom:1px solid var(--line);
vertical-align:top;min-width:4.5rem;overflow-wrap:break-word}
tbody th{font-weight:500}tbody tr:last-child>*{border-bottom:0}
tbody tr:hover{background:var(--head)}
thead th{background:var(--head);font-weight:600}
.number{text-align:right;white-space:nowrap}
pre{white-space:pre-wrap;background:var(--head);padding:.7rem .9rem;border-radius:.5rem;
margin:.5rem 0 1rem}
code,pre{font:.88rem/1.45 ui-monospace,monospace}
figure{margin:.5rem 0;min-width:0}
figure svg.chart{width:100%;height:auto;display:block;background:none;color:var(--text);
font-size:14px}
figcaption{font-size:.9rem}
.legend{list-style:none;padding:0;margin:.3rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1rem;
font-size:.9rem}
.legend span{display:inline-block;width:1rem;height:.25rem;margin-right:.4rem;
vertical-align:middle;border-radius:2px}
.legend .mark0,.legend .mark1{height:0;border-top:2px dashed currentColor;border-radius:0}
.legend .mark1{border-top-style:dotted}
video,figure img{width:min(100%,24rem);height:auto;border-radius:.5rem}
figure img{image-rendering:pixelated}
.videos{display:flex;flex-wrap:wrap;gap:1rem}.videos figure{width:min(100%,24rem)}
.videos video{width:100%}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr));
gap:0 1.5rem;align-items:start}.columns table{width:100%}
.bar{background:var(--bar);height:.7rem;border-radius:.2rem;min-width:1px;margin-top:.4rem}
td:has(>.bar){min-width:9rem}
details{margin-top:.75rem}details summary{cursor:pointer;padding:.3rem 0;color:var(--link)}
.controls{display:flex;flex-wrap:wrap;gap:.5rem 1.25rem;align-items:center;margin-bottom:.5rem}
button.sort{all:unset;cursor:pointer;font-weight:600}
button.sort:focus-visible{outline:2px solid var(--link)}
button.sort::after{content:" \\2195";color:var(--soft)}
[aria-sort=ascending] button.sort::after{content:" \\2191"}
[aria-sort=descending] button.sort::after{content:" \\2193"}
input,select{font:inherit;max-width:100%;padding:.2rem .5rem;border:1px solid var(--soft);
border-radius:.4rem;background:var(--card);color:var(--text)}
@media(max-width:600px){body{padding:1rem .6rem 2rem}.card{padding:.9rem .8rem}
.tiles{grid-template-columns:1fr 1fr}.tiles dd{font-size:1.15rem}
table{font-size:.86rem}th,td{padding:.3rem .45rem;min-width:3rem}
figure svg.chart{font-size:19px}.chart .label{display:none}}
"""
    f"@media print{{:root{{{_PAPER}}}"
    """nav,.controls{display:none}body{max-width:none;padding:0;font-size:11pt}
.card{border:0;padding:0;margin-bottom:1.5rem}figure,tr,.tiles,pre{break-inside:avoid}
h2,h3,caption{break-after:avoid}.charts{grid-template-columns:1fr 1fr}
.scroll{overflow:visible}}
"""
)
