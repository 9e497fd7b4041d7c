// The prompts of `eval greedy-hash`: six paragraphs to copy, where a good model leaves itself no choice, and
// six runs of random words, where every next token is a close call. Never changed: results are compared over years.
#pragma once

#include <array>

namespace qengine {

inline constexpr std::array<const char*, 12> kGreedyPrompts{
    "Copy the following paragraph word for word.\n\nThe harbour wakes before the town does. At four the first boats come in, low in the water, and the gulls know it. By six the auction is over, the ice is hosed off the quay, and the only sign of the catch is a row of vans waiting for the bridge to close.\n\nCopy:\n",
    "Copy the following paragraph word for word.\n\nA lighthouse keeper writes three things into the log each night: the wind, the state of the lamp, and any ship that passed. On 14 March 1911 the entry reads: wind north-west 7, lamp clear, no ship. On the next night the page is empty.\n\nCopy:\n",
    "Copy the following paragraph word for word.\n\nTo make the dough, mix 500 g of flour with 325 g of water, 10 g of salt and 3 g of yeast. Knead it for eight minutes, let it rest for two hours, fold it twice, and bake it at 230 degrees for 35 minutes on a hot stone.\n\nCopy:\n",
    "Copy the following paragraph word for word.\n\nThe committee met on Tuesday in room 204. It approved the budget of 18,450 euros, postponed the question of the roof to the autumn, and thanked Ms Okafor for eleven years of service. The next meeting is on 9 September at 17:30.\n\nCopy:\n",
    "Copy the following paragraph word for word.\n\nRivers do not run straight for long. Where the bed is soft, a small bend slows the water on its inner side, sand settles there, and the faster outer stream cuts into the bank, so that each bend makes itself larger until the river breaks through its own neck.\n\nCopy:\n",
    "Copy the following paragraph word for word.\n\nThe parser reads one line at a time. An empty line ends a record; a line that begins with a hash is a comment; every other line holds a key, a colon and a value. A key that appears twice is an error, and the error names both lines.\n\nCopy:\n",
    "fern ribbon raven indigo raven walnut jigsaw zephyr anchor yonder fern ribbon quiver eagle thistle nickel olive knoll anchor raven orchid jigsaw dagger yonder",
    "kettle velvet nectar drift ledger marble ember hazel silver velvet silver amber fable basil drift raven hazel olive fable copper dagger harbor raven copper",
    "island jasper umbra orchid knoll kettle thistle drift knoll kettle hazel fable amber nickel bridge raven nickel fern fern nickel zephyr jasper basil quiver",
    "violet fable marble raven quartz walnut yonder thistle zephyr silver timber harbor quartz pebble velvet yonder yonder hazel ledger yarrow hazel lantern basil zephyr",
    "copper candle indigo basil olive silver copper candle zephyr nectar zinc nickel garnet yarrow knoll olive lantern ember thistle ribbon candle copper ribbon goblet",
    "walnut nickel parcel violet drift hazel eagle yonder nectar velvet saddle eagle fern thistle fern pebble kettle eagle knoll yonder lantern marble zinc willow",
};

}  // namespace qengine
