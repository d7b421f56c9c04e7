/**
 * Colours have a contrast of 3:1 or more on their background in both schemes, and every line has a dash of its own besides. Widths are
 * those of the page: nothing but a table inside its box is wider than the window.
 */
export const PAGE_STYLE = `
:root{color-scheme:light dark;--paper:#fff;--ink:#1a1d21;--soft:#555d66;--rule:#c9ced4;--band:#f2f4f6;--focus:#0b57d0;
--monolithic:#a8470a;--pipelined:#0b62b8;--early:#0a7a4b;--ideal:#7a3fb0;--wait:#8a929b;--tail:#c0233f;--good:#0a6b41;--alarm:#b3201b}
@media (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e7eaee;--soft:#a5aeb8;--rule:#3d454e;--band:#1e2328;--focus:#8ab4f8;
--monolithic:#f0934a;--pipelined:#64aef5;--early:#4ecb93;--ideal:#c39bf0;--wait:#7d8791;--tail:#ff7a90;--good:#5fd39c;--alarm:#ff8a80}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
header,main,footer{max-width:62rem;margin:0 auto;padding:0 1rem}
h1{font-size:1.6rem;line-height:1.25;margin:1.5rem 0 .25rem}
h2{font-size:1.25rem;margin:2.5rem 0 .5rem;border-top:1px solid var(--rule);padding-top:1rem}
h3{font-size:1.05rem;margin:1.5rem 0 .25rem}
h4{font-size:.95rem;margin:1.25rem 0 .25rem;font-weight:600}
p{margin:.5rem 0;max-width:46rem}
a{color:var(--focus)}
:focus-visible{outline:3px solid var(--focus);outline-offset:2px}
.skip{position:absolute;left:-100vw;background:var(--paper);padding:.5rem 1rem;z-index:1}
.skip:focus{left:.5rem;top:.5rem}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;margin:.75rem 0}
.lead{color:var(--soft)}
.headlines{padding-left:1.25rem}
.none{color:var(--soft);font-size:.9rem}
.good{color:var(--good);font-weight:600}
.alarm{color:var(--alarm);font-weight:600}
.scroll{overflow-x:auto;margin:.75rem 0;max-width:100%}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;overflow-wrap:normal}
caption{text-align:left;font-weight:600;padding:.25rem 0;white-space:normal}
caption span{display:inline-block;position:sticky;left:0;max-width:min(100%,calc(100vw - 2rem))}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap;vertical-align:top}
thead th{background:var(--band);font-weight:600}
tbody th{font-weight:500}
.text{text-align:left}
td.text{white-space:normal;min-width:7rem;max-width:26rem}
.facts{margin:.5rem 0}
.facts div{display:grid;grid-template-columns:minmax(8rem,14rem) 1fr;gap:0 1rem;border-bottom:1px solid var(--rule);padding:.2rem 0;font-size:.9rem}
.facts dt{color:var(--soft)}
.facts dd{margin:0}
figure{margin:1rem 0 2rem}
figcaption{font-weight:600;margin-bottom:.25rem}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1.25rem;padding:0;margin:.25rem 0 .75rem;font-size:.875rem}
.legend svg{vertical-align:middle}
.key{display:inline-block;width:1.4rem;height:.75rem;vertical-align:middle}
.chart{padding:0 1.75rem 0 2.75rem;margin-bottom:1rem}
.ytitle,.xtitle{font-size:.8rem;color:var(--soft)}
.ytitle{margin:0 0 .4rem -2.75rem}
.xtitle{text-align:right;margin-top:1.6rem}
.plot{position:relative;height:16rem;border:1px solid var(--rule);border-width:0 0 1px 1px}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.ytick,.xtick,.markname{position:absolute;font-size:.75rem;color:var(--soft);white-space:nowrap}
.ytick{right:100%;transform:translateY(-50%);padding-right:.4rem}
.xtick{top:100%;transform:translateX(-50%);padding-top:.3rem}
.markname{bottom:.15rem;margin-left:.2rem;padding:0 .2rem;background:var(--paper)}
.grid{stroke:var(--rule);stroke-width:1;fill:none}
.bound{stroke:var(--soft);stroke-width:1.5;stroke-dasharray:2 3;fill:none}
.line{fill:none;stroke-width:2;stroke:var(--ink)}
.line.monolithic{stroke:var(--monolithic)}
.line.pipelined{stroke:var(--pipelined);stroke-dasharray:9 3}
.line.pipelined-early-prefix{stroke:var(--early);stroke-dasharray:4 3}
.line.ideal{stroke:var(--ideal);stroke-dasharray:10 3 2 3}
.lanes{padding-right:1rem}
.lane,.axis{display:grid;grid-template-columns:4.2rem 1fr;align-items:center}
.lanename{font-size:.78rem;color:var(--soft)}
.track{position:relative;height:1.45rem;border-left:1px solid var(--rule)}
.axis .track{border-top:1px solid var(--rule);height:1.6rem}
.axis .xtick{top:0}
.bar{position:absolute;top:.12rem;bottom:.12rem;min-width:1px;overflow:hidden;white-space:nowrap;font-size:.7rem;line-height:1.2rem;color:var(--paper);border-left:1px solid var(--paper)}
.bar.compute,.key.compute,.bar.slice,.key.slice,.bar.last,.key.last,.bar.early,.key.early,.bar.tail,.key.tail,.sharebar{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.compute{background:var(--pipelined)}
.slice{background:var(--monolithic)}
.last{background:var(--ideal)}
.early{background:var(--early)}
.tail,.bar.tail{background:repeating-linear-gradient(45deg,var(--tail) 0 4px,var(--paper) 4px 6px);border:1px solid var(--tail)}
.wait,.bar.wait{border:0;border-bottom:2px dotted var(--wait)}
.shares{list-style:none;padding:0}
.shares li{display:grid;grid-template-columns:minmax(9rem,18rem) 1fr 4.5rem;gap:.75rem;align-items:center;margin:.3rem 0;font-size:.875rem}
.sharetrack{height:1rem;background:var(--band);border:1px solid var(--rule)}
.sharebar{display:block;height:100%;background:var(--pipelined)}
.sharebar.monolithic{background:var(--monolithic)}
.sharebar.pipelined-early-prefix{background:var(--early)}
.sharebar.ideal{background:var(--ideal)}
.sharevalue{text-align:right;font-variant-numeric:tabular-nums}
footer{color:var(--soft);font-size:.875rem;padding-bottom:3rem}
@media (max-width:36rem){.plot{height:12rem}.chart{padding-right:1rem}.shares li{grid-template-columns:1fr 4.5rem}.sharename{grid-column:1/-1}.facts div{grid-template-columns:1fr}.minor{display:none}}
@media print{:root{--paper:#fff;--ink:#000;--soft:#444;--rule:#bbb;--band:#eee}nav,.skip{display:none}body{font-size:10.5pt}header,main,footer{max-width:none;padding:0}
.scroll{overflow:visible}table{font-size:7.5pt}th,td{white-space:normal;padding:.15rem .3rem}td.text{min-width:0}.scroll,.chart,.picture,tr,.shares{break-inside:avoid}h2,h3,h4,p,figcaption,.legend{break-after:avoid}.facts{columns:2}.facts div{break-inside:avoid}.plot{height:11rem}}
`;
