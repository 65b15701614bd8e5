-- Tell how full a queue is and what it does about that; leaves a level whose queue has emptied since. allow-oom.
-- ARGV[3] queue
-- Reply: {fill, 0 to 1 or a little more, as text; level, 0 to 4: nothing, warns, sheds bulk, sheds standard too, full}
return { tostring(fill_of(ARGV[3])), pressure(ARGV[3]) }
