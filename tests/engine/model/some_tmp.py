import sys; sys.path.insert(0,'.')
import make_family_goldens as m
from families import llama_like as f
for n in sys.argv[1:]:
    e=m.make_case(f,n,f.CASES[n]); print(n,len(str(e)))
