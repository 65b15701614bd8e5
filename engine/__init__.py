"""Token ids in, token ids out, on one device.

Letters for tensor shapes, used in trailing comments throughout this package:

    T tokens in the step      S sequences in the step    R sampled rows
    L layers                  H query heads              G key/value heads
    D head dimension          M hidden size              F feed-forward size
    N blocks in the cache     B tokens in a block        V vocabulary
    E experts                 K experts of a row
    P values in 32 bits (the cache's packing, see engine/kv_cache.py)
"""
