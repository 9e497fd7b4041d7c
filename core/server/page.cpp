#include "core/server/page.hpp"

namespace qengine::server {

const std::string_view kPage = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>qengine</title>
<style>
:root{--fg:#1d1f23;--dim:#6a6f78;--bg:#fafaf8;--card:#fff;--line:#e3e3de;--accent:#2a6f4e;--me:#eef4f0}
@media(prefers-color-scheme:dark){:root{--fg:#e8e8e4;--dim:#9a9fa8;--bg:#17181a;--card:#1f2124;--line:#33363a;--accent:#6fc29a;--me:#24302a}}
*{box-sizing:border-box}body{margin:0;font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg)}
main{display:grid;grid-template-columns:minmax(0,3fr) minmax(16rem,2fr);gap:1.2rem;max-width:76rem;margin:0 auto;padding:1.2rem}
@media(max-width:50rem){main{grid-template-columns:1fr}}
header{grid-column:1/-1;display:flex;gap:1rem;align-items:baseline;flex-wrap:wrap}
h1{font-size:1.15rem;margin:0}h2{font-size:.8rem;letter-spacing:.04em;text-transform:uppercase;color:var(--dim);margin:0 0 .5rem}
.dim{color:var(--dim)}section,aside>div{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:1rem}
aside{display:grid;gap:1.2rem;align-content:start}#log{min-height:18rem;max-height:65vh;overflow:auto}
.msg{white-space:pre-wrap;overflow-wrap:anywhere;margin:.5rem 0;padding:.5rem .7rem;border-radius:6px}.user{background:var(--me)}
.error{color:#b3261e}form{display:flex;gap:.5rem;margin-top:.8rem}
textarea{flex:1;resize:vertical;min-height:2.6rem;font:inherit;color:inherit;background:var(--bg);border:1px solid var(--line);border-radius:6px;padding:.5rem}
button{font:inherit;border:0;border-radius:6px;padding:.5rem 1rem;background:var(--accent);color:var(--bg);cursor:pointer}button:disabled{opacity:.5}
dl{display:grid;grid-template-columns:auto auto;gap:.15rem 1rem;margin:0}dd{margin:0;text-align:right;font-variant-numeric:tabular-nums}
table{border-collapse:collapse;width:100%;font-size:.85rem}td,th{text-align:left;padding:.15rem .6rem .15rem 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
td:last-child,th:last-child{text-align:right;padding-right:0;white-space:nowrap}.bar{display:flex;height:1.1rem;border-radius:4px;overflow:hidden;background:var(--line)}
.bar i{display:block}.key i{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.35rem}.key{font-size:.85rem;display:flex;gap:.9rem;flex-wrap:wrap;margin-top:.4rem}
</style></head><body><main>
<header><h1>qengine</h1><span id="model" class="dim"></span></header>
<section aria-label="Chat"><div id="log" aria-live="polite"></div>
<form id="form"><textarea id="text" aria-label="Message" placeholder="Write to the model" autofocus></textarea><button id="send">Send</button></form>
<p class="dim" id="speed" style="margin:.4rem 0 0"></p></section>
<aside>
<div><h2>Now</h2><dl id="live"></dl></div>
<div><h2>Memory</h2><div class="bar" id="bar"></div><div class="key" id="key"></div></div>
<div><h2>Formats</h2><table><thead><tr><th>plugin</th><th>scheme</th><th>tier</th><th>bytes</th></tr></thead><tbody id="formats"></tbody></table></div>
</aside></main>
<script>
const $=id=>document.getElementById(id), messages=[]; let last=null, key=sessionStorage.getItem('key')||'';
const headers=()=>key?{Authorization:'Bearer '+key}:{};
const size=n=>{const u=['B','KiB','MiB','GiB','TiB'];let i=0;while(n>=1024&&i<4){n/=1024;i++}return n.toFixed(i?1:0)+' '+u[i]};
async function get(path){let r=await fetch(path,{headers:headers()});if(r.status===401){key=prompt('API key')||'';sessionStorage.setItem('key',key);r=await fetch(path,{headers:headers()})}return r}
function say(role,text){const d=document.createElement('div');d.className='msg '+role;d.textContent=text;$('log').append(d);$('log').scrollTop=1e9;return d}
function read(text){const m={};for(const l of text.split('\n')){if(!l||l[0]==='#')continue;const i=l.lastIndexOf(' ');m[l.slice(0,i)]=+l.slice(i+1)}
 return name=>Object.entries(m).filter(([k])=>k===name||k.startsWith(name+'{')).map(([k,v])=>[k,v])}
async function tick(){try{const f=read(await (await fetch('/metrics')).text()),sum=n=>f(n).reduce((a,[,v])=>a+v,0),now=performance.now()/1000,
  tokens=sum('vllm:generation_tokens_total'),prompt=sum('vllm:prompt_tokens_total');
  let rate=0,prate=0;if(last&&now>last.now){rate=(tokens-last.tokens)/(now-last.now);prate=(prompt-last.prompt)/(now-last.now)}last={now,tokens,prompt};
  const rows=[['generated tok/s',rate.toFixed(1)],['prompt tok/s',prate.toFixed(1)],['running',sum('vllm:num_requests_running')],['queued',sum('vllm:num_requests_waiting')],
   ['KV cache in use',(100*sum('vllm:kv_cache_usage_perc')).toFixed(1)+' %'],['tokens since start',tokens]];
  $('live').replaceChildren(...rows.flatMap(([a,b])=>{const t=document.createElement('dt'),d=document.createElement('dd');t.textContent=a;d.textContent=b;return[t,d]}));
  const parts=f('qengine:device_memory_bytes').map(([k,v])=>[/kind="([^"]+)"/.exec(k)[1],v]).filter(([k,v])=>v>0&&k!=='free'&&k!=='other'),total=parts.reduce((a,[,v])=>a+v,0)||1,
   colours=['#2a6f4e','#b0792c','#4b6ea8','#8a4f7d','#7d7d74'];
  $('bar').replaceChildren(...parts.map(([k,v],i)=>{const e=document.createElement('i');e.style.cssText='width:'+100*v/total+'%;background:'+colours[i%5];e.title=k+' '+size(v);return e}));
  $('key').replaceChildren(...parts.map(([k,v],i)=>{const e=document.createElement('span'),c=document.createElement('i');c.style.background=colours[i%5];e.append(c,k+' '+size(v));return e}));
 }catch(e){$('live').textContent='the server does not answer'}}
async function info(){try{const r=await get('/server_info');if(!r.ok)return;const j=await r.json();$('model').textContent=j.model+' · '+j.max_model_len.toLocaleString()+' tokens · KV '+j.kv.dtype;
  const by={};for(const l of j.layers){const k=[l.plugin,l.scheme,l.tier].join('\u0000');by[k]=(by[k]||0)+l.bytes}
  $('formats').replaceChildren(...Object.entries(by).map(([k,b])=>{const tr=document.createElement('tr');for(const t of[...k.split('\u0000'),size(b)]){const td=document.createElement('td');td.textContent=t;tr.append(td)}return tr}))}catch(e){}}
$('text').addEventListener('keydown',e=>{if(e.key==='Enter'&&!e.shiftKey){e.preventDefault();$('form').requestSubmit()}});
$('form').addEventListener('submit',async e=>{e.preventDefault();const text=$('text').value.trim();if(!text||$('send').disabled)return;
 $('text').value='';$('send').disabled=true;messages.push({role:'user',content:text});say('user',text);const box=say('assistant','');let answer='',n=0,t0=performance.now(),t1=0;
 try{const r=await fetch('/v1/chat/completions',{method:'POST',headers:{'Content-Type':'application/json',...headers()},body:JSON.stringify({messages,stream:true,max_completion_tokens:512})});
  if(!r.ok)throw new Error((await r.json()).error.message);
  const reader=r.body.getReader(),dec=new TextDecoder();let buf='';
  for(;;){const{value,done}=await reader.read();if(done)break;buf+=dec.decode(value,{stream:true});let i;
   while((i=buf.indexOf('\n\n'))>=0){const ev=buf.slice(0,i);buf=buf.slice(i+2);if(!ev.startsWith('data: ')||ev==='data: [DONE]')continue;const j=JSON.parse(ev.slice(6));
    if(j.error)throw new Error(j.error.message);const d=j.choices[0]&&j.choices[0].delta;if(d&&(d.content||d.reasoning)){if(!n++)t1=performance.now();answer+=d.content||'';box.textContent=answer||d.reasoning}}
   $('log').scrollTop=1e9}
  messages.push({role:'assistant',content:answer});const s=(performance.now()-t1)/1000;$('speed').textContent='first token after '+(t1-t0).toFixed(0)+' ms, then '+(n>1&&s>0?((n-1)/s).toFixed(1):'0')+' pieces a second'
 }catch(err){box.className='msg error';box.textContent=err.message;messages.pop()}
 $('send').disabled=false;$('text').focus()});
info();tick();setInterval(tick,1000);
</script></body></html>
)html";

}  // namespace qengine::server
